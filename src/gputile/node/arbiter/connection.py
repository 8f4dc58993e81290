"""Serves a container's socket: lets its processes in, and believes nothing of what they send.

The socket and all connections are sources of the node's ``MessageQueue``: who connects and hangs up in a loop pays for
that as for messages.
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

HELLO_WITHIN_S: Final = 5.0
MOST_READ: Final = AT_ONCE * SIZE  # bytes; what is not handled waits in the kernel, where its sender pays for it
MOST_UNSENT: Final = 16384  # bytes; one that does not read for so long is gone
# As many as there are slots in the file of what a container's processes hold: no other process of it has a GPU.
MOST_CONNECTIONS: Final = 512
ARRIVAL_COST: Final = 32  # a connection takes the arbiter as long as so many messages


class Listener:
    """Lets in those who connect to a listening socket in the directory ``container``, which it owns."""

    whole = 0

    def __init__(self, container: str, handler: "Arbiter", queue: MessageQueue) -> None:
        """Listen.

        Raises:
            OSError: the directory is gone, or cannot be written.
        """
        self.container = container
        self._sock, self._file = _listen_in(Path(container))
        self._handler = handler
        self._queue = queue
        self.resume()

    @property
    def is_reached(self) -> bool:
        """Whether the directory has this very socket: it may have been removed and made anew meanwhile."""
        try:
            found = os.lstat(Path(self.container) / SOCKET)
        except OSError:
            return False
        return os.path.samestat(found, self._file)

    def close(self) -> None:
        self._queue.leave(self)
        self.pause()
        self._sock.close()

    def pause(self) -> None:
        asyncio.get_running_loop().remove_reader(self._sock)

    def resume(self) -> None:
        asyncio.get_running_loop().add_reader(self._sock, self._queue.read, self)

    def end_if_gone(self) -> None:
        """Nobody owns the listening socket but the arbiter."""

    def handle(self, most: int) -> int:  # noqa: ARG002 - one costs more than that
        """Let one process in."""
        try:
            connected, _ = self._sock.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return ARRIVAL_COST
        except OSError as error:
            self._handler.complain(self.container, f"nobody is let in: {error}")
            return ARRIVAL_COST
        connected.setblocking(False)
        self._handler.arrive(self.container, connected)
        return ARRIVAL_COST


def _listen_in(directory: Path) -> tuple[socket.socket, os.stat_result]:
    """Return a listening socket in ``directory``, in the place of one that was left there, and its file.

    Raises:
        OSError: the directory is gone, or cannot be written.
    """
    beside = f".{SOCKET}.{os.getpid()}"
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        fd = os.open(directory, os.O_PATH | os.O_DIRECTORY)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(beside, dir_fd=fd)
            # The path of a socket has 107 bytes, and the directory's alone can have more.
            made.bind(f"/proc/self/fd/{fd}/{beside}")
            os.chmod(beside, 0o666, dir_fd=fd)  # noqa: S103 - the container's user can be anybody
            made.listen(MOST_CONNECTIONS)
            file = os.stat(beside, dir_fd=fd, follow_symlinks=False)
            os.rename(beside, SOCKET, src_dir_fd=fd, dst_dir_fd=fd)
        finally:
            os.close(fd)
    except OSError:
        made.close()
        raise
    return made, file


def remove_from(directory: Path) -> None:
    with contextlib.suppress(OSError):
        (directory / SOCKET).unlink()


class ContainerConnection(asyncio.BufferedProtocol):
    """Speaks with the process ``member`` of a container."""

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
        self._timer = asyncio.get_running_loop().call_later(HELLO_WITHIN_S, self._expect_hello)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - reads are small, whoever sends much
        """Return where the next bytes go; there is room, for nothing is read while whole messages wait."""
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Take in the messages that are whole, as far as the container's queue has room for them."""
        self._filled += nbytes
        self._queue.read(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the reason makes no difference
        if self._timer is not None:
            self._timer.cancel()
        self._transport = None
        self._queue.leave(self)
        self._handler.gone(self.container, self._member)

    def tell(self, uuid: str, instruction: TimesliceMessage) -> None:
        number = next(number for number, name in self._gpus.items() if name == uuid)
        if isinstance(instruction, Grant):
            self._send(Message(MessageKind.TURN, number, instruction.turn, instruction.length))
        else:
            self._send(Message(MessageKind.LIMIT, number, instruction.turn, instruction.remaining))

    def acknowledge(self, number: int) -> None:
        self._send(Message(MessageKind.WAIT, number))

    def close(self) -> None:
        self._closed = True
        if self._transport is not None:
            self._transport.abort()

    # -- what the queue calls

    @property
    def whole(self) -> int:
        """How many whole messages are not handled; none once the connection is to end."""
        return 0 if self._ending else self._filled // SIZE

    def handle(self, most: int) -> int:
        """Take in messages until they count as ``most`` or more, or none is left; return as how many they counted."""
        end, spent = 0, 0
        try:
            while spent < most and end // SIZE < self.whole:
                message, end = bytes(self._buffer[end : end + SIZE]), end + SIZE
                spent += self._take(decode(message))
        except ProtocolError as error:
            self._handler.complain(self.container, f"a process is not understood: {error}")
            self.close()
        except Exception:
            self.close()  # else its message would come again and again
            raise
        rest = self._buffer[end : self._filled]
        self._filled = len(rest)
        self._buffer[: self._filled] = rest  # as long as before: the transport still holds a view of it
        return spent

    def pause(self) -> None:
        if self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    def end_if_gone(self) -> None:
        """End the connection if its process has: what that has said before makes no difference any more."""
        if self._transport is None:
            return
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket"), 0)
        if poll.poll(0):
            self.close()

    # -- inside

    @property
    def _ending(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def _take(self, message: Message) -> int:
        kind = message.kind
        if not self._agreed:
            self._greet(message)
        elif kind is MessageKind.GPU:
            uuid = self._handler.gpu_of(self.container, (message.a, message.b))
            if uuid is None or message.gpu in self._gpus or uuid in self._gpus.values():
                raise ProtocolError("a GPU that is not its own, or twice")
            self._gpus[message.gpu] = uuid
        elif kind in (MessageKind.WANT, MessageKind.BUSY, MessageKind.DONE) and message.gpu in self._gpus:
            return self._handler.said(self.container, self._member, self._gpus[message.gpu], message)
        else:
            raise ProtocolError(f"{kind.name} out of place")
        return 1

    def _greet(self, message: Message) -> None:
        if message.kind is not MessageKind.HELLO or message.a > message.b:
            raise ProtocolError("no HELLO")
        self._agreed = message.a <= VERSION <= message.b
        version = VERSION if self._agreed else 0  # 0: there is none that both speak
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
            self._handler.complain(self.container, "a process does not read what it is told")
            self.close()
            return
        self._transport.write(message.encode())
