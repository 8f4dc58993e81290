"""Runs the process of an exec plugin within bounds, and ends it with all that it has started."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Final

MOST_BYTES: Final = 1 << 20  # a token has some KiB, a certificate with its key too
_KEPT_BYTES: Final = 4096  # of what it says on stderr, the end
_LATE_S: Final = 1.0  # for what a process has written before it ended, where a child keeps its output open
_ENDED_S: Final = 2.0  # until the kernel has ended a process
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


@dataclass(frozen=True, slots=True)
class PluginAnswer:
    """What a plugin wrote, and its exit status; ``said`` is the end of its stderr.

    ``status`` is None where it was ended before it did so itself: it took too long, or wrote more than a MiB.
    """

    written: bytes
    said: str
    status: int | None
    too_long: bool = False


class _PluginOutput(asyncio.SubprocessProtocol):
    def __init__(self) -> None:
        self.written = bytearray()
        self.said = b""
        self.done = asyncio.Event()  # it has ended, or has written too much
        self.closed = asyncio.Event()
        self.exited = asyncio.Event()

    @property
    def too_long(self) -> bool:
        return len(self.written) > MOST_BYTES

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Keep what an answer may have, and the end of what is said."""
        if fd == 1:
            self.written += data[: MOST_BYTES + 1 - len(self.written)]
            if self.too_long:
                self.done.set()
        else:
            self.said = (self.said + data)[-_KEPT_BYTES:]

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        """Take note that there will be no more of it."""
        del exc
        if fd == 1:
            self.closed.set()

    def process_exited(self) -> None:
        """Take note that it has ended."""
        self.exited.set()
        self.done.set()


async def answer_of(command: Sequence[str], environment: Mapping[str, str], seconds: float) -> PluginAnswer:
    """Run a plugin for at most so many seconds, and return what it answers.

    It has a session of its own, so that it is ended with its children where it takes too long or is no longer waited
    for. Where it ends by itself, a child that it leaves goes on: some plugins leave a process that keeps logins.

    Raises:
        OSError: it cannot be started.
        ValueError: its arguments or its environment are none.
    """
    pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    with _ended_by_signals() as begin:
        transport, output = await asyncio.get_running_loop().subprocess_exec(
            _PluginOutput, *command, stdin=null, stdout=pipe, stderr=pipe, env=environment, start_new_session=True
        )
        begin(transport.get_pid())
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await output.done.wait()
            status = transport.get_returncode()
            if status is not None:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LATE_S):
                        await output.closed.wait()
        finally:
            await _end(transport, output)
    return PluginAnswer(bytes(output.written), _text(output.said), status, output.too_long)


async def _end(transport: asyncio.SubprocessTransport, output: _PluginOutput) -> None:
    """End the process and its children where it goes on, and take its pipes away."""
    if transport.get_returncode() is None:
        _kill(transport.get_pid())
    transport.close()
    with suppress(TimeoutError):
        async with asyncio.timeout(_ENDED_S):
            await output.exited.wait()


def _kill(session: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(session, signal.SIGKILL)


def _text(said: bytes) -> str:
    return " ".join(said.decode(errors="replace").split())[-500:]


@contextmanager
def _ended_by_signals() -> Iterator[Callable[[int], None]]:
    """Yield what is to be told the session that has begun: a signal that ends this process then ends that one, too.

    A program that handles the signal itself, as a service does, ends what it waits for in its own way.
    """
    session: int | None = None
    came: int | None = None

    def end(number: int, _frame: FrameType | None) -> None:
        nonlocal came
        came = number
        if session is not None:  # else it is just beginning
            leave(session, number)

    def begin(begun: int) -> None:
        nonlocal session
        session = begun
        if came is not None:
            leave(begun, came)

    def leave(begun: int, number: int) -> None:
        _kill(begun)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    here = threading.current_thread() is threading.main_thread()
    handled = [each for each in _SIGNALS if here and signal.getsignal(each) is signal.SIG_DFL]
    for each in handled:
        signal.signal(each, end)
    try:
        yield begin
    finally:
        for each in handled:
            signal.signal(each, signal.SIG_DFL)
        if came is not None:  # it could not be started
            os.kill(os.getpid(), came)
