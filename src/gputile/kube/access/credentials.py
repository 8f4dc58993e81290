"""Provides what a request authenticates with, and what to do when that is refused."""

import base64
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

from gputile.api.units import MIB
from gputile.kube.errors import ConfigError
from gputile.support.files import read_bounded

TOKEN_FILE_SECONDS = 60.0  # the kubelet rotates a projected token well before it expires


class Credential(NamedTuple):
    """What one request carries: the Authorization header, and the TLS settings with the client certificate."""

    authorization: str | None
    tls: ssl.SSLContext | None


class Credentials(Protocol):
    """A source of credentials."""

    @property
    def waits_for(self) -> str:
        """What ``current`` may wait for, in words; "" where it waits for nothing."""

    async def current(self) -> Credential:
        """Return what to send now.

        Raises:
            ConfigError: there is none.
        """

    def refused(self, credential: Credential) -> bool:
        """Take note that ``credential`` got a 401; return whether another request could carry another one."""

    def take_over(self, before: "Credentials") -> None:
        """Use the credential that ``before`` got and that costs something to get, where both are of one source."""


class FixedCredentials:
    """A token, a password, a client certificate, or nothing: the same for ever."""

    waits_for = ""

    def __init__(self, authorization: str | None, tls: ssl.SSLContext | None) -> None:
        self._credential = Credential(authorization, tls)

    async def current(self) -> Credential:
        """Return the one credential."""
        return self._credential

    def refused(self, credential: Credential) -> bool:
        """Return False: there is no other."""
        del credential
        return False

    def take_over(self, before: Credentials) -> None:
        """Do nothing: what is written costs nothing to get."""


class TokenFileCredentials:
    """A token in a file that somebody rotates, as the kubelet does for service accounts."""

    waits_for = ""

    def __init__(self, path: Path, tls: ssl.SSLContext | None, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._tls = tls
        self._monotonic = monotonic
        self._credential: Credential | None = None
        self._read_at = 0.0

    async def current(self) -> Credential:
        """Return the token, read again once a minute.

        Raises:
            ConfigError: the file cannot be read, or holds no token.
        """
        now = self._monotonic()
        if self._credential is None or now - self._read_at >= TOKEN_FILE_SECONDS:
            self._credential = Credential(bearer(self._read()), self._tls)
            self._read_at = now
        return self._credential

    def refused(self, credential: Credential) -> bool:
        """Read the file again; return whether it holds another token than the one refused."""
        self._credential = None
        return bearer(self._read()) != credential.authorization

    def take_over(self, before: Credentials) -> None:
        """Do nothing: a file is read again."""

    def _read(self) -> str:
        try:
            return read_token(self._path)
        except OSError as error:
            raise ConfigError(f"cannot read the token file {self._path}: {error.strerror}") from error


def read_token(path: Path) -> str:
    """Return the token in a file.

    Raises:
        OSError: the file cannot be read.
        ConfigError: it holds none.
    """
    token = read_bounded(path, MIB).strip()
    if not token:
        raise ConfigError(f"the token file {path} is empty")
    try:
        bearer(text := token.decode("ascii", errors="replace"))
    except ValueError as error:
        raise ConfigError(f"the token file {path}: {error}") from error
    return text


def bearer(token: str) -> str:
    """Return the Authorization header of a bearer token.

    Raises:
        ValueError: it has a character that no header may have, such as the end of a line.
    """
    if not (token.isascii() and token.isprintable()):
        raise ValueError("a token must be one line of ASCII characters, and this one has others")
    return f"Bearer {token}"


def basic(username: str, password: str) -> str:
    """Return the Authorization header of a user name and password."""
    return "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()
