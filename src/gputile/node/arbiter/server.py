"""Connects the scheduler of turns to the sockets of the containers and to the clock.

All sockets feed one ``MessageQueue``, in which a new connection costs as much as 32 messages.
"""

import asyncio
import contextlib
import logging
import os
import select
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Final

from gputile.node.arbiter.accounts import Grant, Limit, Share, TimesliceMessage
from gputile.node.arbiter.message_queue import MessageQueue, MessageSource
from gputile.node.arbiter.messages import (
    SIZE,
    SOCKET,
    VERSION,
    Assignment,
    Message,
    MessageKind,
    ProtocolError,
    Spent,
    Used,
    decode,
    uuid_fields,
)
from gputile.node.arbiter.node_timeslices import GpuMessages, NodeTimeSlices
from gputile.node.arbiter.timeslice_scheduler import MS

log = logging.getLogger(__name__)

WARN_EVERY_S: Final = 60.0
HELLO_TIMEOUT_S: Final = 5.0
# The number of slots in a usage file. Only a process with a slot can use a GPU.
MOST_CONNECTIONS: Final = 512
CONNECTION_COST: Final = 32  # accepting a connection takes as long as handling so many messages


class _SocketSource(MessageSource):
    """A socket as a source of messages. The event loop watches the socket unless it is paused."""

    def __init__(self, container: str, sock: socket.socket, arbiter: "Arbiter") -> None:
        self.container = container
        self.closed = False
        self._sock = sock
        self._arbiter = arbiter
        self._loop = asyncio.get_running_loop()
        self.resume()

    def pause(self) -> None:
        self._loop.remove_reader(self._sock)

    def resume(self) -> None:
        if not self.closed:
            self._loop.add_reader(self._sock, self._arbiter.queue.submit, self)

    def close_if_hung_up(self) -> None:
        """Close a connection if the process closed it or ended. Unread messages are dropped."""
        poll = select.poll()
        poll.register(self._sock, 0)
        if poll.poll(0):
            self.close()

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._arbiter.queue.discard(self)
            self.pause()
            self._sock.close()


class Listener(_SocketSource):
    """The listening socket of a container. ``container`` is its allocation directory."""

    def __init__(self, container: str, arbiter: "Arbiter") -> None:
        """Create the socket. Raises OSError if the directory does not exist or is not writable."""
        sock, self._file = _listen_in(Path(container))
        super().__init__(container, sock, arbiter)

    @property
    def is_reachable(self) -> bool:
        """Whether the directory still contains this socket. False if it was recreated."""
        try:
            found = os.lstat(Path(self.container) / SOCKET)
        except OSError:
            return False
        return os.path.samestat(found, self._file)

    def handle(self, most: int) -> int:  # noqa: ARG002 - one connection costs more than ``most``
        """Accept one connection."""
        try:
            accepted, _ = self._sock.accept()
            accepted.setblocking(False)
            self._arbiter.connected(self.container, accepted)
        except (BlockingIOError, ConnectionAbortedError):
            pass
        except OSError as error:
            self._arbiter.warn(self.container, f"cannot accept a connection: {error}")
        return CONNECTION_COST


def _listen_in(directory: Path) -> tuple[socket.socket, os.stat_result]:
    """Create a listening socket in ``directory``. Return the socket and ``os.stat`` of its file.

    An existing socket is replaced. Raises OSError if the directory does not exist or is not
    writable.
    """
    temporary = f".{SOCKET}.{os.getpid()}"
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        fd = os.open(directory, os.O_PATH | os.O_DIRECTORY)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=fd)
            # The path of a socket may have only 107 bytes, but the directory's path may be longer.
            listening.bind(f"/proc/self/fd/{fd}/{temporary}")
            # Any user of the container may connect.
            os.chmod(temporary, 0o666, dir_fd=fd)  # noqa: S103
            listening.listen(MOST_CONNECTIONS)
            file = os.stat(temporary, dir_fd=fd, follow_symlinks=False)
            os.rename(temporary, SOCKET, src_dir_fd=fd, dst_dir_fd=fd)
        finally:
            os.close(fd)
    except OSError:
        listening.close()
        raise
    return listening, file


class ContainerConnection(_SocketSource):
    """The connection to the process ``member`` of a container.

    ``uuids`` contains the UUIDs of the container's GPUs. The keys are the fields ``a`` and ``b`` of
    a message ``GPU``. Unread messages stay in the kernel, and are charged to the sender's memory.
    """

    def __init__(
        self,
        container: str,
        uuids: Mapping[tuple[int, int], str],
        member: int,
        sock: socket.socket,
        arbiter: "Arbiter",
    ) -> None:
        super().__init__(container, sock, arbiter)
        self._uuids = uuids
        self._member = member
        self._received = b""  # the received part of an incomplete message
        self._gpus: dict[int, str] = {}
        self._agreed = False
        self._hello_timer = self._loop.call_later(HELLO_TIMEOUT_S, self.close)

    def send(self, uuid: str, message: TimesliceMessage) -> None:
        number = next(number for number, name in self._gpus.items() if name == uuid)
        match message:
            case Grant(_, turn, length):
                self._send(Message(MessageKind.TURN, number, turn, length))
            case Limit(_, turn, remaining):
                self._send(Message(MessageKind.LIMIT, number, turn, remaining))

    def acknowledge(self, number: int) -> None:
        self._send(Message(MessageKind.WAIT, number))

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._hello_timer.cancel()
            # Delayed, because the arbiter may currently send the messages of another event.
            self._loop.call_soon(self._arbiter.disconnected, self.container, self._member)

    def handle(self, most: int) -> int:
        spent = 0
        try:
            while spent < most and not self.closed and (message := self._receive()) is not None:
                spent += self._handle(message)
        except ProtocolError as error:
            self._arbiter.warn(self.container, f"invalid message: {error}")
            self.close()
        return spent

    def _receive(self) -> Message | None:
        """Return the next message, or None if no complete message has arrived."""
        try:
            data = self._sock.recv(SIZE - len(self._received))
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        if not data:
            self.close()
            return None
        self._received += data
        if len(self._received) < SIZE:
            return None
        complete, self._received = self._received, b""
        return decode(complete)

    def _handle(self, message: Message) -> int:
        kind = message.kind
        if not self._agreed:
            self._greet(message)
        elif kind is MessageKind.GPU:
            uuid = self._uuids.get((message.a, message.b))
            if uuid is None or message.gpu in self._gpus or uuid in self._gpus.values():
                raise ProtocolError("GPU names a GPU of another container, or a GPU twice")
            self._gpus[message.gpu] = uuid
        elif (
            kind in (MessageKind.WANT, MessageKind.BUSY, MessageKind.DONE)
            and message.gpu in self._gpus
        ):
            return self._arbiter.handle(
                self.container, self._member, self._gpus[message.gpu], message
            )
        else:
            raise ProtocolError(f"unexpected {kind.name}")
        return 1

    def _greet(self, message: Message) -> None:
        if message.kind is not MessageKind.HELLO or message.a > message.b:
            raise ProtocolError("HELLO is missing")
        self._agreed = message.a <= VERSION <= message.b
        version = VERSION if self._agreed else 0  # 0 means that there is no common version
        self._send(Message(MessageKind.WELCOME, a=version, b=self._arbiter.turns.quantum))
        if self._agreed:
            self._hello_timer.cancel()
        else:
            self.close()

    def _send(self, message: Message) -> None:
        if self.closed:
            return
        try:
            self._sock.send(message.encode())
        except BlockingIOError:
            self._arbiter.warn(self.container, "a process does not read its messages")
            self.close()
        except OSError:
            self.close()


@dataclass(slots=True)
class _ConnectedContainer:
    uuids: dict[tuple[int, int], str]
    listener: Listener | None = None
    members: set[int] = field(default_factory=set)
    warn_at: float = 0.0


class Arbiter:
    """Serves the containers of the latest assignment."""

    def __init__(self) -> None:
        self.turns = NodeTimeSlices()
        self._containers: dict[str, _ConnectedContainer] = {}
        self.queue = MessageQueue(asyncio.get_running_loop())
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._connections: dict[int, ContainerConnection] = {}
        self._numbers = count(1)  # for the members

    def assign(self, assignment: Assignment) -> None:
        self.turns.configure(assignment.quantum_ms * MS, assignment.longest_wait_ms * MS)
        wanted = assignment.containers
        for name, container in list(self._containers.items()):
            if set(container.uuids.values()) != wanted.get(name, {}).keys():
                self._remove(name)
        for name, shares in wanted.items():
            self._serve(name, shares)
        self.queue.containers = max(1, len(self._containers))
        self.listen()

    def listen(self) -> None:
        """Create missing sockets. A directory may have been created since the last call."""
        for name, container in self._containers.items():
            if container.listener is not None:
                if container.listener.is_reachable:
                    continue
                container.listener.close()
                container.listener = None
            with contextlib.suppress(OSError):
                container.listener = Listener(name, self)

    def used(self) -> Used:
        now = time.monotonic_ns()
        used: Used = {}
        for name, container in self._containers.items():
            accounts = {u: self.turns.gpus[u].accounts[name] for u in container.uuids.values()}
            used[name] = {
                uuid: Spent(account.reported_use(), account.waited_until(now))
                for uuid, account in accounts.items()
            }
        return used

    def close(self) -> None:
        for name in list(self._containers):
            self._remove(name)

    # -- called by connections

    def handle(self, allocation: str, member: int, uuid: str, message: Message) -> int:
        """Handle a process's message about a GPU. Return the cost in messages."""
        turns, now = self.turns, time.monotonic_ns()
        match message.kind:
            case MessageKind.WANT if turns.gpus[uuid].waits(member):
                self._connections[member].acknowledge(message.gpu)
                return 1
            case MessageKind.WANT:
                messages = turns.want(uuid, allocation, member, now)
            case MessageKind.BUSY:
                messages = turns.busy(uuid, member, message.turn, now)
            case _:
                messages = turns.done(uuid, member, message.turn, message.a, message.b == 1, now)
        self._send(messages, now)
        return turns.cost

    def disconnected(self, allocation: str, member: int) -> None:
        container = self._containers.get(allocation)
        self._connections.pop(member, None)
        if container is None or member not in container.members:
            return
        container.members.discard(member)
        for uuid in container.uuids.values():
            now = time.monotonic_ns()
            self._send(self.turns.leave(uuid, member, now), now)

    def warn(self, allocation: str, text: str) -> None:
        """Log a fault of a container, at most once a minute, so that it cannot fill the log."""
        container, now = self._containers[allocation], time.monotonic()
        if now >= container.warn_at:
            container.warn_at = now + WARN_EVERY_S
            log.warning("%s: %s", allocation, text)

    def connected(self, allocation: str, accepted: socket.socket) -> None:
        """Serve a new connection of a container, unless the container has too many connections."""
        container = self._containers[allocation]
        if len(container.members) >= MOST_CONNECTIONS:
            accepted.close()
            return
        member = next(self._numbers)
        self._connections[member] = ContainerConnection(
            allocation, container.uuids, member, accepted, self
        )
        container.members.add(member)

    # -- internal

    def _serve(self, name: str, shares: Mapping[str, Share]) -> None:
        if name not in self._containers:
            try:
                uuids = {uuid_fields(uuid): uuid for uuid in shares}
            except ProtocolError as error:
                log.error("cannot schedule %s: %s", name, error)
                return
            self._containers[name] = _ConnectedContainer(uuids)
        for uuid, share in shares.items():
            now = time.monotonic_ns()
            self._send(self.turns.set_share(uuid, name, share, now), now)

    def _remove(self, name: str) -> None:
        container = self._containers.pop(name)
        if container.listener is not None:
            container.listener.close()
            with contextlib.suppress(OSError):
                (Path(name) / SOCKET).unlink()
        for member in container.members:
            self._connections[member].close()
        for uuid in container.uuids.values():
            now = time.monotonic_ns()
            self._send(self.turns.remove(uuid, name, now), now)

    def _send(self, messages: GpuMessages, now: int) -> None:
        for uuid, message in messages:
            connection = self._connections.get(message.member)
            if connection is not None:
                connection.send(uuid, message)
        for uuid, at in self.turns.changed_wakeups(now).items():
            timer = self._timers.pop(uuid, None)
            if timer is not None:
                timer.cancel()
            if at is not None:
                loop = asyncio.get_running_loop()
                self._timers[uuid] = loop.call_later(max(0, at - now) / 1e9, self._tick, uuid)

    def _tick(self, uuid: str) -> None:
        now = time.monotonic_ns()
        self._send(self.turns.tick(uuid, now), now)
