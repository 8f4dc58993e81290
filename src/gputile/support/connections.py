"""Limits a server's connections: in number, and in time while nothing is asked on them.

A connection counts from the moment in which it is accepted, before any handshake. Whoever opens connections and asks
nothing on them keeps out nobody: those that have waited longest are closed for newer ones. Nor does who asks on all of
them: where there are too many, the host that has the most loses one.
"""

import contextlib
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

Address = tuple[str, int]
"""Of a client: its host and port, as HTTP servers name it."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """``most`` connections at a time, and for how many seconds one may stay open while nothing is asked on it.

    ``first_seconds`` is for one on which nothing was asked yet, its handshake included; ``idle_seconds`` for any other.
    """

    most: int = 512
    first_seconds: float = 10.0
    idle_seconds: float = 150.0


STANDARD_LIMITS: Final = ConnectionLimits()


@dataclass(slots=True)
class _Open:
    """An open connection; ``since`` is when it was accepted, or when what was asked last began or ended."""

    connection: socket.socket
    since: float
    asked: int = 0  # requests that are being answered
    proven: bool = False  # something was asked on it


@dataclass(slots=True)
class OpenConnections:
    """What is open now, by the client's address."""

    limits: ConnectionLimits = STANDARD_LIMITS
    monotonic: Callable[[], float] = time.monotonic
    _open: dict[Address, _Open] = field(default_factory=dict)

    def __len__(self) -> int:
        self._forget_closed()
        return len(self._open)

    def accepted(self, connection: socket.socket, address: Address) -> None:
        """Count a new connection; where there are too many, close the one that is missed least."""
        self._open[address] = _Open(connection, self.monotonic())
        if len(self._open) > self.limits.most:
            self._forget_closed()
        if len(self._open) > self.limits.most:
            others = [each for each in self._open if each != address]
            hosts = Counter(host for host, _ in others)
            self._close(min(others, key=lambda each: (-hosts[each[0]], self._worth(each))))

    @contextlib.contextmanager
    def asked(self, address: Address | None) -> Iterator[None]:
        """Note that a request of the client at ``address`` is answered for as long as the context lasts."""
        found = self._open.get(address) if address is not None else None
        if found is None:
            yield
            return
        found.asked, found.proven, found.since = found.asked + 1, True, self.monotonic()
        try:
            yield
        finally:
            found.asked, found.since = found.asked - 1, self.monotonic()

    def close(self, address: Address) -> None:
        """End a client's connection, whatever it is about; one that is gone already stays so."""
        if address in self._open:
            self._close(address)

    def close_idle(self) -> None:
        """Close the connections on which nothing has been asked for too long."""
        self._forget_closed()
        now, limits = self.monotonic(), self.limits
        for address, each in list(self._open.items()):
            seconds = limits.idle_seconds if each.proven else limits.first_seconds
            if not each.asked and now - each.since > seconds:
                self._close(address)

    def _worth(self, address: Address) -> tuple[bool, bool, float]:
        """Order connections by how much they are missed: those last on which something is being answered."""
        found = self._open[address]
        return found.asked > 0, found.proven, found.since

    def _close(self, address: Address) -> None:
        """End a connection. Its transport sees that and closes it, whatever it is about."""
        with contextlib.suppress(OSError):
            self._open.pop(address).connection.shutdown(socket.SHUT_RDWR)

    def _forget_closed(self) -> None:
        for address in [address for address, each in self._open.items() if each.connection.fileno() < 0]:
            del self._open[address]
