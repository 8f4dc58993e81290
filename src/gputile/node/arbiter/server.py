"""Runs the arbiter: a socket for each container, the turns on all GPUs, and the clock."""

import asyncio
import logging
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gputile.node.arbiter.agent_messages import AssignedContainer, Assignment, Spent, Used
from gputile.node.arbiter.connection import MOST_CONNECTIONS, ContainerConnection, Listener, remove_from
from gputile.node.arbiter.message_queue import MessageQueue
from gputile.node.arbiter.node_timeslices import NodeTimeSlices, Said
from gputile.node.arbiter.protocol import Message, MessageKind, ProtocolError, uuid_fields
from gputile.node.arbiter.timeslice_scheduler import MS

log = logging.getLogger(__name__)

TRY_AGAIN_S: Final = 1.0
COMPLAIN_EVERY_S: Final = 60.0


@dataclass(slots=True)
class _ConnectedContainer:
    allocation: AssignedContainer
    uuids: dict[tuple[int, int], str]
    entrance: Listener | None = None
    members: set[int] = field(default_factory=set)
    complain_at: float = 0.0
    waits: bool = False


class Arbiter:
    """Serves the containers of the assignment that it was given last."""

    def __init__(self) -> None:
        self.quantum = Assignment().quantum_ms * MS
        self._turns = NodeTimeSlices(self.quantum, Assignment().longest_wait_ms * MS)
        self._containers: dict[str, _ConnectedContainer] = {}
        self._queue = MessageQueue(asyncio.get_running_loop())
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._connections: dict[int, ContainerConnection] = {}
        self._last_member = 0
        self._refused: set[str] = set()  # told people of once
        self._arriving: set[asyncio.Task[object]] = set()

    def assign(self, assignment: Assignment) -> None:
        self.quantum = assignment.quantum_ms * MS
        self._turns.configure(self.quantum, assignment.longest_wait_ms * MS)
        wanted = {allocation.directory: allocation for allocation in assignment.allocations}
        for name in list(self._containers):
            before = {gpu.uuid for gpu in self._containers[name].allocation.gpus}
            if name not in wanted or before != {gpu.uuid for gpu in wanted[name].gpus}:
                self._drop(name)
        self._refused &= wanted.keys()
        for allocation in wanted.values():
            self._put(allocation)
        for uuid in self._turns.gpus - {gpu.uuid for a in wanted.values() for gpu in a.gpus}:
            self._turns.drop(uuid)
            self._set_timer(uuid, None)
        self._queue.containers = max(1, len(self._containers))
        self.listen()

    def listen(self) -> bool:
        """Listen where nobody does yet; return whether that is everywhere."""
        complete = True
        for name, container in self._containers.items():
            if container.entrance is not None and container.entrance.is_reached:
                continue
            if container.entrance is not None:
                container.entrance.close()
                container.entrance = None
            try:
                container.entrance = Listener(name, self, self._queue)
            except OSError as error:
                # The directory comes when the container starts; it is looked for again and again.
                if not container.waits:
                    log.info("no turns yet for %s: %s", name, error)
                    container.waits = True
                complete = False
            else:
                container.waits = False
        return complete

    def used(self) -> Used:
        now = time.monotonic_ns()
        return {
            name: {
                uuid: Spent(max(0, self._turns.gpu(uuid).used(name)), self._turns.gpu(uuid).waited(name, now))
                for uuid in container.uuids.values()
            }
            for name, container in self._containers.items()
        }

    def close(self) -> None:
        for name in list(self._containers):
            self._drop(name)

    # -- what connections call

    def gpu_of(self, allocation: str, fields: tuple[int, int]) -> str | None:
        """Return the UUID of the container's GPU that ``GPU`` names, None where it is not the container's."""
        container = self._containers.get(allocation)
        return container.uuids.get(fields) if container is not None else None

    def said(self, allocation: str, member: int, uuid: str, message: Message) -> int:
        """Take in what a member says of a GPU; return as how many messages it counts."""
        turns, now = self._turns, time.monotonic_ns()
        if uuid not in turns.gpus:
            return 1
        match message.kind:
            case MessageKind.WANT if turns.gpu(uuid).waits(member):
                self._connections[member].acknowledge(message.gpu)
                return 1
            case MessageKind.WANT:
                found = turns.want(uuid, allocation, member, now)
            case MessageKind.BUSY:
                found = turns.busy(uuid, member, message.turn, now)
            case _:
                found = turns.done(uuid, member, message.turn, message.a, message.b == 1, now)
        cost = turns.cost
        self._follow(found, now)
        return cost

    def gone(self, allocation: str, member: int) -> None:
        container = self._containers.get(allocation)
        self._connections.pop(member, None)
        if container is None or member not in container.members:
            return
        container.members.discard(member)
        for uuid in container.uuids.values():
            now = time.monotonic_ns()
            self._follow(self._turns.leave(uuid, member, now), now)

    def complain(self, allocation: str, text: str) -> None:
        """Tell people of a container that misbehaves, once a minute: it must not fill the log."""
        container, now = self._containers.get(allocation), time.monotonic()
        if container is not None and now >= container.complain_at:
            container.complain_at = now + COMPLAIN_EVERY_S
            log.warning("%s: %s", allocation, text)

    def arrive(self, allocation: str, connected: socket.socket) -> None:
        """Let a process of the container in."""
        container = self._containers[allocation]
        if len(container.members) >= MOST_CONNECTIONS:
            connected.close()
            return
        self._last_member += 1
        connection = ContainerConnection(allocation, self._last_member, self, self._queue)
        self._connections[self._last_member] = connection
        container.members.add(self._last_member)
        loop = asyncio.get_running_loop()
        made = loop.create_task(loop.connect_accepted_socket(lambda: connection, connected))
        self._arriving.add(made)
        made.add_done_callback(self._arriving.discard)

    # -- inside

    def _put(self, allocation: AssignedContainer) -> None:
        try:
            uuids = {uuid_fields(gpu.uuid): gpu.uuid for gpu in allocation.gpus}
        except ProtocolError as error:
            if allocation.directory not in self._refused:
                log.error("no turns for %s: %s", allocation.directory, error)
                self._refused.add(allocation.directory)
            return
        container = self._containers.get(allocation.directory)
        if container is None:
            container = _ConnectedContainer(allocation, uuids)
            self._containers[allocation.directory] = container
        container.allocation = allocation
        for gpu in allocation.gpus:
            now = time.monotonic_ns()
            self._follow(self._turns.put(gpu.uuid, allocation.directory, gpu.share, now), now)

    def _drop(self, name: str) -> None:
        container = self._containers.pop(name)
        if container.entrance is not None:
            container.entrance.close()
            remove_from(Path(name))
        for member in container.members:
            self._connections[member].close()
        for uuid in container.uuids.values():
            now = time.monotonic_ns()
            self._follow(self._turns.remove(uuid, name, now), now)

    def _follow(self, said: Said, now: int) -> None:
        for uuid, instruction in said:
            connection = self._connections.get(instruction.member)
            if connection is not None:
                connection.tell(uuid, instruction)
        for uuid, at in self._turns.touched(now).items():
            self._set_timer(uuid, at, now)

    def _set_timer(self, uuid: str, at: int | None, now: int = 0) -> None:
        timer = self._timers.pop(uuid, None)
        if timer is not None:
            timer.cancel()
        if at is not None:
            loop = asyncio.get_running_loop()
            self._timers[uuid] = loop.call_later(max(0, at - now) / 1e9, self._tick, uuid)

    def _tick(self, uuid: str) -> None:
        now = time.monotonic_ns()
        self._follow(self._turns.tick(uuid, now), now)
