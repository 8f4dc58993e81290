"""Encodes and decodes versioned JSON of untrusted annotations and possibly damaged files."""

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
    """Encodes and decodes one kind of text, of at most ``most`` characters or bytes; None for any length.

    ``check`` raises ValueError for values that contradict themselves.
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
            ValueError: an ``error`` of the codec: the text is too long, is not JSON, has another version, has a field
                of a wrong type or out of range, or contradicts itself.
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
