"""Serves a container's socket: accepts its processes, and validates all messages from them.

The socket and its connections are sources of the node's ``MessageQueue``, so new connections count as messages too.
"""

import asyncio
import contextlib
import os
import select
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gputile.node.arbiter.accounts import Grant, TimesliceMessage
from gputile.node.arbiter.message_queue import AT_ONCE, MessageQueue
from gputile.node.arbiter.protocol import SIZE, SOCKET, VERSION, Message, MessageKind, ProtocolError, decode

if TYPE_CHECKING:
    from gputile.node.arbiter.server import Arbiter

HELLO_TIMEOUT_S: Final = 5.0
MOST_READ: Final = AT_ONCE * SIZE  # bytes; the rest stays in the kernel, charged to its sender's memory
MOST_UNSENT: Final = 16384  # bytes; a process with more is disconnected
# The number of slots in the usage file: only a process with a slot can use a GPU.
MOST_CONNECTIONS: Final = 512
CONNECTION_COST: Final = 32  # accepting a connection takes as long as handling this many messages


class Listener:
    """Owns the listening socket in the directory ``container``, and accepts connections."""

    pending = 0

    def __init__(self, container: str, handler: "Arbiter", queue: MessageQueue) -> None:
        """Raises OSError if the directory does not exist or cannot be written."""
        self.container = container
        self._sock, self._file = _listen_in(Path(container))
        self._handler = handler
        self._queue = queue
        self.resume()

    @property
    def is_reachable(self) -> bool:
        """Whether the directory still has this socket: the directory may have been removed and recreated."""
        try:
            found = os.lstat(Path(self.container) / SOCKET)
        except OSError:
            return False
        return os.path.samestat(found, self._file)

    def close(self) -> None:
        self._queue.discard(self)
        self.pause()
        self._sock.close()

    def pause(self) -> None:
        asyncio.get_running_loop().remove_reader(self._sock)

    def resume(self) -> None:
        asyncio.get_running_loop().add_reader(self._sock, self._queue.submit, self)

    def close_if_hung_up(self) -> None:
        """Do nothing, since a listening socket has no other end."""

    def handle(self, most: int) -> int:  # noqa: ARG002 - one connection costs more than that
        """Accept one connection."""
        try:
            accepted, _ = self._sock.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return CONNECTION_COST
        except OSError as error:
            self._handler.warn(self.container, f"cannot accept a connection: {error}")
            return CONNECTION_COST
        accepted.setblocking(False)
        self._handler.connected(self.container, accepted)
        return CONNECTION_COST


def _listen_in(directory: Path) -> tuple[socket.socket, os.stat_result]:
    """Create a listening socket in ``directory``, replacing an existing one; return it with the status of its file.

    Raises:
        OSError: the directory does not exist or cannot be written.
    """
    temporary = f".{SOCKET}.{os.getpid()}"
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        fd = os.open(directory, os.O_PATH | os.O_DIRECTORY)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=fd)
            # The path of a socket is limited to 107 bytes, and the directory's own path may be longer.
            listening.bind(f"/proc/self/fd/{fd}/{temporary}")
            os.chmod(temporary, 0o666, dir_fd=fd)  # noqa: S103 - any user of the container may connect
            listening.listen(MOST_CONNECTIONS)
            file = os.stat(temporary, dir_fd=fd, follow_symlinks=False)
            os.rename(temporary, SOCKET, src_dir_fd=fd, dst_dir_fd=fd)
        finally:
            os.close(fd)
    except OSError:
        listening.close()
        raise
    return listening, file


def remove_from(directory: Path) -> None:
    with contextlib.suppress(OSError):
        (directory / SOCKET).unlink()


class ContainerConnection(asyncio.BufferedProtocol):
    """The connection to the process ``member`` of a container."""

    def __init__(self, container: str, member: int, handler: "Arbiter", queue: MessageQueue) -> None:
        self.container = container
        self._member = member
        self._handler = handler
        self._transport: asyncio.Transport | None = None
        self._queue = queue
        self._buffer = bytearray(MOST_READ)
        self._filled = 0
        self._gpus: dict[int, str] = {}
        self._agreed = False
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - for mypy: a stream socket
        self._transport = transport
        if self._closed:
            transport.abort()
        self._timer = asyncio.get_running_loop().call_later(HELLO_TIMEOUT_S, self._expect_hello)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - reads are small
        """Return the free part of the buffer. It is never empty: reading pauses while complete messages are pending."""
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        self._queue.submit(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the reason makes no difference
        if self._timer is not None:
            self._timer.cancel()
        self._transport = None
        self._queue.discard(self)
        self._handler.disconnected(self.container, self._member)

    def send(self, uuid: str, message: TimesliceMessage) -> None:
        number = next(number for number, name in self._gpus.items() if name == uuid)
        if isinstance(message, Grant):
            self._send(Message(MessageKind.TURN, number, message.turn, message.length))
        else:
            self._send(Message(MessageKind.LIMIT, number, message.turn, message.remaining))

    def acknowledge(self, number: int) -> None:
        self._send(Message(MessageKind.WAIT, number))

    def close(self) -> None:
        self._closed = True
        if self._transport is not None:
            self._transport.abort()

    # -- called by the queue

    @property
    def pending(self) -> int:
        return 0 if self._is_closing else self._filled // SIZE

    def handle(self, most: int) -> int:
        end, spent = 0, 0
        try:
            while spent < most and end // SIZE < self.pending:
                message, end = bytes(self._buffer[end : end + SIZE]), end + SIZE
                spent += self._handle(decode(message))
        except ProtocolError as error:
            self._handler.warn(self.container, f"invalid message: {error}")
            self.close()
        except Exception:
            self.close()  # otherwise the message would be handled again and again
            raise
        rest = self._buffer[end : self._filled]
        self._filled = len(rest)
        self._buffer[: self._filled] = rest  # keep the buffer's length: the transport still has a view of it
        return spent

    def pause(self) -> None:
        if self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    def close_if_hung_up(self) -> None:
        """Close the connection if the process has closed it or died; its unread messages are irrelevant."""
        if self._transport is None:
            return
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket"), 0)
        if poll.poll(0):
            self.close()

    # -- internal

    @property
    def _is_closing(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def _handle(self, message: Message) -> int:
        kind = message.kind
        if not self._agreed:
            self._greet(message)
        elif kind is MessageKind.GPU:
            uuid = self._handler.gpu_of(self.container, (message.a, message.b))
            if uuid is None or message.gpu in self._gpus or uuid in self._gpus.values():
                raise ProtocolError("GPU is not the container's, or was named twice")
            self._gpus[message.gpu] = uuid
        elif kind in (MessageKind.WANT, MessageKind.BUSY, MessageKind.DONE) and message.gpu in self._gpus:
            return self._handler.handle(self.container, self._member, self._gpus[message.gpu], message)
        else:
            raise ProtocolError(f"unexpected {kind.name}")
        return 1

    def _greet(self, message: Message) -> None:
        if message.kind is not MessageKind.HELLO or message.a > message.b:
            raise ProtocolError("HELLO is missing")
        self._agreed = message.a <= VERSION <= message.b
        version = VERSION if self._agreed else 0  # 0: no common version
        self._send(Message(MessageKind.WELCOME, a=version, b=self._handler.quantum))
        if not self._agreed and self._transport is not None:
            self._transport.close()

    def _expect_hello(self) -> None:
        if not self._agreed:
            self.close()

    def _send(self, message: Message) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if self._transport.get_write_buffer_size() > MOST_UNSENT:
            self._handler.warn(self.container, "a process does not read its messages")
            self.close()
            return
        self._transport.write(message.encode())
