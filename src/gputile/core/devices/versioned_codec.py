"""Reads and writes versioned JSON, of annotations that may lie and of files that may be damaged."""

from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from gputile.api.conversion import decode

# Kubernetes' TotalAnnotationSizeLimitB: no object can carry a longer one.
MOST_CHARACTERS = 256 * 1024

Value = TypeVar("Value", bound=msgspec.Struct)


class _Versioned(msgspec.Struct):
    version: int


class VersionedCodec(Generic[Value]):
    """Writes and reads one kind of text, of ``most`` characters or bytes at most; None for any length.

    ``check`` refuses values that contradict themselves, by a ValueError.
    """

    def __init__(
        self,
        kind: type[Value],
        version: int,
        error: type[ValueError],
        check: Callable[[Value], Value],
        *,
        most: int | None = MOST_CHARACTERS,
    ) -> None:
        self._version = version
        self._error = error
        self._check = check
        self._most = most
        self._head = msgspec.json.Decoder(_Versioned)
        self._body = msgspec.json.Decoder(kind)

    def encode(self, value: Value) -> str:
        """Return the text, which begins with the version."""
        rest = msgspec.json.encode(value).decode().removeprefix("{")
        return f'{{"version":{self._version}{"" if rest == "}" else ","}{rest}'

    def decode(self, text: str | bytes) -> Value:
        """Return the value in the text.

        Raises:
            ValueError: of the codec's own kind, with the rule that is broken: too long, not JSON, another version, a
                field of another type or out of range, or parts that contradict each other.
        """
        try:
            if self._most is not None and len(text) > self._most:
                raise self._error(f"it has {len(text)} characters, more than {self._most}")
            version = decode(text, self._head).version
            if version != self._version:
                raise self._error(f"version {version} is not known; this gputile reads version {self._version}")
            return self._check(decode(text, self._body))
        except ValueError as error:
            raise self._error(str(error)) from error
