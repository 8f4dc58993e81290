"""Binds ports before anything else begins, and reloads TLS files that others renew."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

log = logging.getLogger(__name__)


class PortError(Exception):
    """A port cannot be opened; the text says which option asked for it, why not, and what helps."""

    def __init__(self, option: str, host: str, port: int, error: OSError) -> None:
        address = f"{host} port {port}" if host else f"port {port}"
        super().__init__(f"cannot listen on {address}: {error.strerror}; choose another with {option}")


def bind_port(option: str, host: str, port: int) -> socket.socket:
    """Return a socket that has ``port`` of ``host``, and does not listen yet; ``option`` is what asked for it.

    A ``host`` of "" is every address, IPv6 too: pods of some clusters have no other.

    Raises:
        PortError: it cannot be opened.
    """
    is_of_both = not host and socket.has_dualstack_ipv6()
    held = socket.socket(socket.AF_INET6 if is_of_both or ":" in host else socket.AF_INET)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_of_both:
            held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        held.bind((host, port))
    except OSError as error:
        held.close()
        raise PortError(option, host, port, error) from error
    return held


class UnusableTls(Exception):
    """The files cannot be read, or have no certificate with its key."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The server's certificate and key, and the authority that clients' certificates must come from."""

    certificate: Path
    key: Path
    client_authority: Path | None = None

    def content(self) -> tuple[bytes, ...]:
        """Return what is in the files.

        Raises:
            UnusableTls: one of them cannot be read.
        """
        files = (self.certificate, self.key, self.client_authority)
        try:
            return tuple(file.read_bytes() for file in files if file is not None)
        except OSError as error:
            raise UnusableTls(f"{error.filename}: {error.strerror}") from error

    def context(self) -> ssl.SSLContext:
        """Return the TLS settings of a server with these files.

        Raises:
            UnusableTls: one of them cannot be read, or cannot be used.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.certificate, self.key)
        except OSError as error:
            raise UnusableTls(f"{self.certificate}: cannot be served with {self.key}: {error}") from error
        if self.client_authority is not None:
            try:
                context.load_verify_locations(self.client_authority)
            except OSError as error:
                raise UnusableTls(f"{self.client_authority}: no certificate of an authority: {error}") from error
            context.verify_mode = ssl.CERT_REQUIRED
        return context


class TlsReloader:
    """Reloads the files; ``changed`` gets the new settings. Invalid files leave the previous settings in force.

    Raises:
        UnusableTls: the files cannot be read, or cannot be used, from the start.
    """

    def __init__(self, files: TlsFiles, changed: Callable[[ssl.SSLContext], None]) -> None:
        self._files = files
        self._changed = changed
        self._problem = ""
        self._content = files.content()
        changed(files.context())

    async def run(self, seconds: float) -> NoReturn:
        while True:
            await asyncio.sleep(seconds)
            self.look()

    def look(self) -> None:
        """Reload what has changed. Certificate and key may be written one after the other: the next call sees both."""
        try:
            content = self._files.content()
            if content != self._content:
                self._changed(self._files.context())
                self._content = content
                log.info("the TLS certificate has changed", extra={"file": str(self._files.certificate)})
            self._problem = ""
        except UnusableTls as error:
            problem = f"the TLS certificate is not reloaded: {error}; the previous one stays in use"
            if problem != self._problem:
                log.error(problem)
            self._problem = problem
