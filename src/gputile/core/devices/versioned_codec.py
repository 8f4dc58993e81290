"""The JSON texts with a version that gputile writes into annotations, and reads from nodes and pods that may lie."""

from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from gputile.api.misfit import decode

# Kubernetes' TotalAnnotationSizeLimitB: no object can carry a longer one.
MOST_CHARACTERS = 256 * 1024

Value = TypeVar("Value", bound=msgspec.Struct)


class _Versioned(msgspec.Struct):
    version: int


class VersionedCodec(Generic[Value]):
    """Writes and reads one kind of text. ``check`` refuses values that contradict themselves, by a ValueError."""

    def __init__(
        self, kind: type[Value], version: int, error: type[ValueError], check: Callable[[Value], Value]
    ) -> None:
        self._version = version
        self._error = error
        self._check = check
        self._head = msgspec.json.Decoder(_Versioned)
        self._body = msgspec.json.Decoder(kind)

    def encode(self, value: Value) -> str:
        """Return the text; the version stands first."""
        return msgspec.json.encode({"version": self._version, **msgspec.to_builtins(value)}).decode()

    def decode(self, text: str) -> Value:
        """Return the value in the text.

        Raises:
            ValueError: of the codec's own kind, with the rule that is broken: too long, not JSON, another version, a
                field of another type or out of range, or parts that contradict each other.
        """
        try:
            if len(text) > MOST_CHARACTERS:
                raise self._error(f"it has {len(text)} characters, more than {MOST_CHARACTERS}")
            version = decode(text, self._head).version
            if version != self._version:
                raise self._error(f"version {version} is not known; this gputile reads version {self._version}")
            return self._check(decode(text, self._body))
        except ValueError as error:
            raise self._error(str(error)) from error
