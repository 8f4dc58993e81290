"""Connects the scheduler of turns to the containers' sockets and to the clock."""

import asyncio
import contextlib
import logging
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gputile.node.arbiter.agent_messages import AssignedContainer, Assignment, Spent, Used
from gputile.node.arbiter.connection import MOST_CONNECTIONS, ContainerConnection, Listener, remove_from
from gputile.node.arbiter.message_queue import MessageQueue
from gputile.node.arbiter.node_timeslices import GpuMessages, NodeTimeSlices
from gputile.node.arbiter.protocol import Message, MessageKind, ProtocolError, uuid_fields
from gputile.node.arbiter.timeslice_scheduler import MS

log = logging.getLogger(__name__)

LISTEN_RETRY_S: Final = 1.0
WARN_EVERY_S: Final = 60.0


@dataclass(slots=True)
class _ConnectedContainer:
    allocation: AssignedContainer
    uuids: dict[tuple[int, int], str]
    listener: Listener | None = None
    members: set[int] = field(default_factory=set)
    warn_at: float = 0.0


class Arbiter:
    """Serves the containers of the latest assignment."""

    def __init__(self) -> None:
        self.quantum = Assignment().quantum_ms * MS
        self._turns = NodeTimeSlices(self.quantum, Assignment().longest_wait_ms * MS)
        self._containers: dict[str, _ConnectedContainer] = {}
        self._queue = MessageQueue(asyncio.get_running_loop())
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._connections: dict[int, ContainerConnection] = {}
        self._last_member = 0
        self._accepting: set[asyncio.Task[object]] = set()

    def assign(self, assignment: Assignment) -> None:
        self.quantum = assignment.quantum_ms * MS
        self._turns.configure(self.quantum, assignment.longest_wait_ms * MS)
        wanted = {allocation.directory: allocation for allocation in assignment.allocations}
        for name in list(self._containers):
            before = {gpu.uuid for gpu in self._containers[name].allocation.gpus}
            if name not in wanted or before != {gpu.uuid for gpu in wanted[name].gpus}:
                self._remove(name)
        for allocation in wanted.values():
            self._serve(allocation)
        for uuid in self._turns.gpus - {gpu.uuid for a in wanted.values() for gpu in a.gpus}:
            self._turns.remove_gpu(uuid)
            self._set_timer(uuid, None)
        self._queue.containers = max(1, len(self._containers))
        self.listen()

    def listen(self) -> None:
        """Create missing sockets: the directory of a container may have been created since."""
        for name, container in self._containers.items():
            if container.listener is not None and container.listener.is_reachable:
                continue
            if container.listener is not None:
                container.listener.close()
                container.listener = None
            with contextlib.suppress(OSError):
                container.listener = Listener(name, self, self._queue)

    def used(self) -> Used:
        now = time.monotonic_ns()
        return {
            name: {
                uuid: Spent(self._turns.gpu(uuid).used(name), self._turns.gpu(uuid).waited(name, now))
                for uuid in container.uuids.values()
            }
            for name, container in self._containers.items()
        }

    def close(self) -> None:
        for name in list(self._containers):
            self._remove(name)

    # -- called by connections

    def gpu_of(self, allocation: str, fields: tuple[int, int]) -> str | None:
        """Return the UUID of the GPU that a ``GPU`` message names; None if it is not one of the container's."""
        container = self._containers.get(allocation)
        return container.uuids.get(fields) if container is not None else None

    def handle(self, allocation: str, member: int, uuid: str, message: Message) -> int:
        """Handle a process's message about a GPU; return its cost in messages."""
        turns, now = self._turns, time.monotonic_ns()
        if uuid not in turns.gpus:
            return 1
        match message.kind:
            case MessageKind.WANT if turns.gpu(uuid).waits(member):
                self._connections[member].acknowledge(message.gpu)
                return 1
            case MessageKind.WANT:
                messages = turns.want(uuid, allocation, member, now)
            case MessageKind.BUSY:
                messages = turns.busy(uuid, member, message.turn, now)
            case _:
                messages = turns.done(uuid, member, message.turn, message.a, message.b == 1, now)
        cost = turns.cost
        self._send(messages, now)
        return cost

    def disconnected(self, allocation: str, member: int) -> None:
        container = self._containers.get(allocation)
        self._connections.pop(member, None)
        if container is None or member not in container.members:
            return
        container.members.discard(member)
        for uuid in container.uuids.values():
            now = time.monotonic_ns()
            self._send(self._turns.leave(uuid, member, now), now)

    def warn(self, allocation: str, text: str) -> None:
        """Log that a container misbehaves, at most once a minute, so that it cannot fill the log."""
        container, now = self._containers.get(allocation), time.monotonic()
        if container is not None and now >= container.warn_at:
            container.warn_at = now + WARN_EVERY_S
            log.warning("%s: %s", allocation, text)

    def connected(self, allocation: str, accepted: socket.socket) -> None:
        """Serve a new connection of a container, unless it has too many."""
        container = self._containers[allocation]
        if len(container.members) >= MOST_CONNECTIONS:
            accepted.close()
            return
        self._last_member += 1
        connection = ContainerConnection(allocation, self._last_member, self, self._queue)
        self._connections[self._last_member] = connection
        container.members.add(self._last_member)
        loop = asyncio.get_running_loop()
        accepting = loop.create_task(loop.connect_accepted_socket(lambda: connection, accepted))
        self._accepting.add(accepting)
        accepting.add_done_callback(self._accepting.discard)

    # -- internal

    def _serve(self, allocation: AssignedContainer) -> None:
        try:
            uuids = {uuid_fields(gpu.uuid): gpu.uuid for gpu in allocation.gpus}
        except ProtocolError as error:
            log.error("cannot schedule %s: %s", allocation.directory, error)
            return
        container = self._containers.get(allocation.directory)
        if container is None:
            container = _ConnectedContainer(allocation, uuids)
            self._containers[allocation.directory] = container
        container.allocation = allocation
        for gpu in allocation.gpus:
            now = time.monotonic_ns()
            self._send(self._turns.set_share(gpu.uuid, allocation.directory, gpu.share, now), now)

    def _remove(self, name: str) -> None:
        container = self._containers.pop(name)
        if container.listener is not None:
            container.listener.close()
            remove_from(Path(name))
        for member in container.members:
            self._connections[member].close()
        for uuid in container.uuids.values():
            now = time.monotonic_ns()
            self._send(self._turns.remove(uuid, name, now), now)

    def _send(self, messages: GpuMessages, now: int) -> None:
        for uuid, message in messages:
            connection = self._connections.get(message.member)
            if connection is not None:
                connection.send(uuid, message)
        for uuid, at in self._turns.changed_wakeups(now).items():
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
        self._send(self._turns.tick(uuid, now), now)
