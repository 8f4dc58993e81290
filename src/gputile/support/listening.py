"""Binds ports before a component starts its work, and reloads TLS files when they are renewed."""

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
    """A port cannot be bound. The message gives the reason and the option that sets the port."""

    def __init__(self, option: str, host: str, port: int, error: OSError) -> None:
        address = f"{host} port {port}" if host else f"port {port}"
        super().__init__(
            f"cannot listen on {address}: {error.strerror}; choose another with {option}"
        )


def bind_port(option: str, host: str, port: int) -> socket.socket:
    """Return a socket that is bound but does not listen yet.

    ``option`` is the command-line option that sets the port. An empty ``host`` means all addresses,
    including IPv6, because pods of some clusters have only IPv6 addresses.

    Raises:
        PortError: the port cannot be bound.
    """
    is_dual_stack = not host and socket.has_dualstack_ipv6()
    bound = socket.socket(socket.AF_INET6 if is_dual_stack or ":" in host else socket.AF_INET)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_dual_stack:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise PortError(option, host, port, error) from error
    return bound


class UnusableTls(Exception):
    """TLS files cannot be read, or contain no matching certificate and key."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """A server's certificate and key, and the CA of client certificates if they are required."""

    certificate: Path
    key: Path
    client_authority: Path | None = None

    def content(self) -> tuple[bytes, ...]:
        """Return the content of the files.

        Raises:
            UnusableTls: a file cannot be read.
        """
        files = (self.certificate, self.key, self.client_authority)
        try:
            return tuple(file.read_bytes() for file in files if file is not None)
        except OSError as error:
            raise UnusableTls(f"{error.filename}: {error.strerror}") from error

    def context(self) -> ssl.SSLContext:
        """Return TLS settings for a server that uses the files.

        Raises:
            UnusableTls: a file cannot be read or used.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.certificate, self.key)
        except OSError as error:
            raise UnusableTls(
                f"{self.certificate}: cannot be served with {self.key}: {error}"
            ) from error
        if self.client_authority is not None:
            try:
                context.load_verify_locations(self.client_authority)
            except OSError as error:
                raise UnusableTls(
                    f"{self.client_authority}: not a CA certificate: {error}"
                ) from error
            context.verify_mode = ssl.CERT_REQUIRED
        return context


class TlsReloader:
    """Reloads the files when they change, and calls ``changed`` with the new settings.

    If the new files are invalid, the previous settings stay in use.

    Raises:
        UnusableTls: the files cannot be read or used at the start.
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
            self.reload()

    def reload(self) -> None:
        """Reload changed files. If certificate and key do not match yet, the next call retries."""
        try:
            content = self._files.content()
            if content != self._content:
                self._changed(self._files.context())
                self._content = content
                log.info(
                    "the TLS certificate has changed", extra={"file": str(self._files.certificate)}
                )
            self._problem = ""
        except UnusableTls as error:
            problem = f"the TLS certificate is not reloaded: {error}; the previous one stays in use"
            if problem != self._problem:
                log.error(problem)
            self._problem = problem
