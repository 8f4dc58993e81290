"""The arbiter: a socket for each container, a ``CardTurns`` for each card, and the clock."""

import asyncio
import logging
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from gputile.arbiter.assignment import Allocation, Assignment
from gputile.arbiter.connection import Connection
from gputile.arbiter.listening import listen_in, remove_from
from gputile.arbiter.protocol import Kind, Message, ProtocolError, uuid_fields
from gputile.arbiter.turns import MS, CardTurns, Instruction
from gputile.arbiter.usage import Used

log = logging.getLogger(__name__)

MOST_CONNECTIONS: Final = 64
TRY_AGAIN_S: Final = 1.0
COMPLAIN_EVERY_S: Final = 60.0


@dataclass(slots=True)
class _Container:
    allocation: Allocation
    uuids: dict[tuple[int, int], str]
    server: asyncio.Server | None = None
    members: set[int] = field(default_factory=set)
    complain_at: float = 0.0
    waits: bool = False


class Arbiter:
    """Serves the containers of the assignment that it was given last."""

    def __init__(self) -> None:
        self.quantum = Assignment().quantum_ms * MS
        self._longest_wait = Assignment().longest_wait_ms * MS
        self._containers: dict[str, _Container] = {}
        self._cards: dict[str, CardTurns] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._connections: dict[int, Connection] = {}
        self._last_member = 0
        self._refused: set[str] = set()  # told people of once
        self._listening = asyncio.Lock()

    async def assign(self, assignment: Assignment) -> None:
        """Serve just the containers of ``assignment``."""
        self.quantum, self._longest_wait = assignment.quantum_ms * MS, assignment.longest_wait_ms * MS
        for turns in self._cards.values():
            turns.configure(self.quantum, self._longest_wait)
        wanted = {allocation.directory: allocation for allocation in assignment.allocations}
        for name in list(self._containers):
            before = {card.uuid for card in self._containers[name].allocation.cards}
            if name not in wanted or before != {card.uuid for card in wanted[name].cards}:
                self._drop(name)
        self._refused &= wanted.keys()
        for allocation in wanted.values():
            self._put(allocation)
        for uuid in self._cards.keys() - {card.uuid for a in wanted.values() for card in a.cards}:
            del self._cards[uuid]
            self._set_timer(uuid, None)
        await self.listen()

    async def listen(self) -> bool:
        """Listen where nobody does yet; return whether that is everywhere."""
        async with self._listening:
            return await self._listen()

    async def _listen(self) -> bool:
        loop, complete = asyncio.get_running_loop(), True
        for name, container in list(self._containers.items()):
            if container.server is not None:
                continue
            try:
                sock = listen_in(Path(name))
            except OSError as error:
                if (
                    not container.waits
                ):  # the directory comes when the container starts; it is looked for again and again
                    log.info("no turns yet for %s: %s", name, error)
                    container.waits = True
                complete = False
                continue
            server = await loop.create_unix_server(partial(self._connect, name), sock=sock)
            if self._containers.get(name) is not container:  # it has gone meanwhile
                server.close()
                if name not in self._containers:
                    remove_from(Path(name))
                continue
            container.server = server
        return complete

    def used(self) -> Used:
        """Return how long each container has had each of its cards."""
        return {
            name: {uuid: max(0, self._cards[uuid].used(name)) for uuid in container.uuids.values()}
            for name, container in self._containers.items()
        }

    def close(self) -> None:
        """Stop serving; clients go on by themselves."""
        for name in list(self._containers):
            self._drop(name)

    # -- what connections call

    def card_of(self, allocation: str, fields: tuple[int, int]) -> str | None:
        """Return the UUID of the container's card that ``CARD`` names, None where it is not the container's."""
        container = self._containers.get(allocation)
        return container.uuids.get(fields) if container is not None else None

    def said(self, allocation: str, member: int, uuid: str, message: Message) -> None:
        """Take in what a member says of a card."""
        turns, now = self._cards.get(uuid), time.monotonic_ns()
        if turns is None:
            return
        match message.kind:
            case Kind.WANT if turns.waits(member):
                self._connections[member].acknowledge(message.card)
                found = turns.tick(now)
            case Kind.WANT:
                found = turns.want(allocation, member, now)
            case Kind.BUSY:
                found = turns.busy(member, message.turn, now)
            case _:
                found = turns.done(member, message.turn, message.a, message.b == 1, now)
        self._follow(uuid, found, now)

    def gone(self, allocation: str, member: int) -> None:
        """Take note that a connection has ended."""
        container = self._containers.get(allocation)
        self._connections.pop(member, None)
        if container is None or member not in container.members:
            return
        container.members.discard(member)
        for uuid in container.uuids.values():
            now = time.monotonic_ns()
            self._follow(uuid, self._cards[uuid].leave(member, now), now)

    def complain(self, allocation: str, text: str) -> None:
        """Tell people of a container that misbehaves, once a minute: it must not fill the log."""
        container, now = self._containers.get(allocation), time.monotonic()
        if container is not None and now >= container.complain_at:
            container.complain_at = now + COMPLAIN_EVERY_S
            log.warning("%s: %s", allocation, text)

    # -- inside

    def _connect(self, name: str) -> asyncio.BaseProtocol:
        container = self._containers.get(name)
        if container is None or len(container.members) >= MOST_CONNECTIONS:
            return _Refusal()
        self._last_member += 1
        connection = self._connections[self._last_member] = Connection(name, self._last_member, self)
        container.members.add(self._last_member)
        return connection

    def _put(self, allocation: Allocation) -> None:
        try:
            uuids = {uuid_fields(card.uuid): card.uuid for card in allocation.cards}
        except ProtocolError as error:
            if allocation.directory not in self._refused:
                log.error("no turns for %s: %s", allocation.directory, error)
                self._refused.add(allocation.directory)
            return
        container = self._containers.setdefault(allocation.directory, _Container(allocation, uuids))
        container.allocation = allocation
        for card in allocation.cards:
            turns = self._cards.setdefault(card.uuid, CardTurns(self.quantum, self._longest_wait))
            now = time.monotonic_ns()
            self._follow(card.uuid, turns.put(allocation.directory, card.share, now), now)

    def _drop(self, name: str) -> None:
        container = self._containers.pop(name)
        if container.server is not None:
            container.server.close()
            remove_from(Path(name))
        for member in container.members:
            self._connections[member].close()
        for uuid in container.uuids.values():
            now = time.monotonic_ns()
            self._follow(uuid, self._cards[uuid].remove(name, now), now)

    def _follow(self, uuid: str, instructions: list[Instruction], now: int) -> None:
        for instruction in instructions:
            connection = self._connections.get(instruction.member)
            if connection is not None:
                connection.tell(uuid, instruction)
        self._set_timer(uuid, self._cards[uuid].wake_at(now), now)

    def _set_timer(self, uuid: str, at: int | None, now: int = 0) -> None:
        timer = self._timers.pop(uuid, None)
        if timer is not None:
            timer.cancel()
        if at is not None:
            loop = asyncio.get_running_loop()
            self._timers[uuid] = loop.call_later(max(0, at - now) / 1e9, self._tick, uuid)

    def _tick(self, uuid: str) -> None:
        now = time.monotonic_ns()
        self._follow(uuid, self._cards[uuid].tick(now), now)


class _Refusal(asyncio.Protocol):
    """A connection too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()
