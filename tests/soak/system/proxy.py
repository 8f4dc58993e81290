"""What stands between a component and the API server: it may delay, cut, or lose answers after requests got through."""

import asyncio
import contextlib
import threading
from dataclasses import dataclass, field
from enum import Enum

from tests.localcluster.machine import LOOPBACK

CHUNK = 1 << 16


class Mood(Enum):
    """What a proxy does with what passes it."""

    PASS = "passes"
    CUT = "cut"  # connections break, and new ones are closed at once
    DELAY = "delayed"  # each piece of an answer is late
    LOSE = "loses answers"  # a connection breaks where the answer to what was asked would pass; a new one passes


@dataclass(eq=False)
class _Connection:
    writers: tuple[asyncio.StreamWriter, asyncio.StreamWriter]
    asked: bool = False  # since the mood was set

    def close(self) -> None:
        for writer in self.writers:
            with contextlib.suppress(Exception):  # broken already
                writer.transport.abort()


@dataclass(eq=False)
class Proxy:
    """The way of one component to the API server at ``target``, on a port of its own. Made by ``Proxies``."""

    name: str
    target: int
    port: int = 0
    mood: Mood = Mood.PASS
    delay_s: float = 0.0
    _open: set[_Connection] = field(default_factory=set)
    _doomed: set[_Connection] = field(default_factory=set)  # those that lose their next answer
    _server: asyncio.Server = field(init=False)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def serve(self) -> None:
        self._server = await asyncio.start_server(self._accept, LOOPBACK, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def end(self) -> None:
        self._server.close()
        self.set(Mood.CUT)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def set(self, mood: Mood, delay_s: float = 0.0) -> None:
        self.mood, self.delay_s = mood, delay_s
        for each in self._open:
            each.asked = False
        self._doomed = set(self._open) if mood is Mood.LOSE else set()
        if mood is Mood.CUT:
            for each in list(self._open):
                each.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.mood is Mood.CUT:
            writer.transport.abort()
            return
        try:
            back, forth = await asyncio.open_connection(LOOPBACK, self.target)
        except OSError:
            writer.transport.abort()
            return
        connection, task = _Connection((writer, forth)), asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._open.add(connection)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump(connection, reader, forth, answers=False))
                both.create_task(self._pump(connection, back, writer, answers=True))
        except* (OSError, _Over):
            pass
        finally:
            connection.close()
            self._open.discard(connection)
            self._doomed.discard(connection)

    async def _pump(
        self, connection: _Connection, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, answers: bool
    ) -> None:
        while data := await source.read(CHUNK):
            if answers and self.mood is Mood.DELAY:
                await asyncio.sleep(self.delay_s)
            if answers and connection in self._doomed and connection.asked:
                break
            connection.asked |= not answers
            sink.write(data)
            await sink.drain()
        raise _Over


class _Over(Exception):
    """One side has closed: so does the other."""


class Proxies:
    """All proxies, served by a thread for as long as the context lasts."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)
        self.by_name: dict[str, Proxy] = {}

    def __enter__(self) -> "Proxies":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        for proxy in self.by_name.values():
            await proxy.end()

    def start(self, name: str) -> Proxy:
        """Return a new proxy, which serves."""
        proxy = self.by_name[name] = Proxy(name, self._target)
        asyncio.run_coroutine_threadsafe(proxy.serve(), self._loop).result(30)
        return proxy

    def set(self, name: str, mood: Mood, delay_s: float = 0.0) -> None:
        """Change what a proxy does."""
        self._loop.call_soon_threadsafe(self.by_name[name].set, mood, delay_s)
