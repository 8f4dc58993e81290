"""What of a container is handled in which time, on a clock that the test moves."""

import heapq
from collections.abc import Callable
from itertools import count

import pytest

from gputile.node.arbiter.message_queue import AT_ONCE, GUARANTEED, SHARED, WINDOW_S, MessageQueue

CONNECTIONS = 64


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self._numbers = count()
        self._calls: list[tuple[float, int, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None], /) -> None:
        heapq.heappush(self._calls, (when, next(self._numbers), callback))

    def pass_by(self, seconds: float) -> None:
        end = self.now + seconds
        while self._calls and self._calls[0][0] <= end:
            self.now, _, callback = heapq.heappop(self._calls)
            callback()
        self.now = end


class Process:
    """One connection: ``unread`` messages are in the kernel."""

    def __init__(self, queue: MessageQueue, container: str) -> None:
        self.queue = queue
        self.container = container
        self.unread = 0
        self.handled = 0
        self.pauses = 0
        self.paused = self.gone = self.ended = False

    def handle(self, most: int) -> int:
        size = 0 if self.ended else min(self.unread, most)
        self.unread -= size
        self.handled += size
        return size

    def pause(self) -> None:
        assert not self.paused
        self.paused = True
        self.pauses += 1

    def resume(self) -> None:
        assert self.paused
        self.paused = False

    def close_if_hung_up(self) -> None:
        if self.gone:
            self.ended = True

    def poll(self) -> None:
        """Do what the event loop does with a connection that can be read."""
        if self.unread and not self.paused and not self.ended:
            self.queue.submit(self)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def node(clock: Clock, containers: int, number: int, unread: int = 0) -> list[list[Process]]:
    """Return the processes of so many containers of one node, ``number`` each."""
    queue = MessageQueue(clock)
    queue.containers = containers
    made = [[Process(queue, f"c{i}") for _ in range(number)] for i in range(containers)]
    for process in (process for container in made for process in container):
        process.unread = unread
    return made


def run(clock: Clock, all_of_them: list[Process], seconds: float) -> None:
    for _ in range(round(seconds * 1000)):
        for _ in range(10):
            for process in all_of_them:
                process.poll()
        clock.pass_by(0.001)


def handled(all_of_them: list[Process]) -> int:
    return sum(process.handled for process in all_of_them)


@pytest.mark.parametrize(("containers", "number"), [(1, 1), (1, CONNECTIONS), (4, 8), (40, 4)])
def test_as_much_is_handled_however_many_flood(clock: Clock, containers: int, number: int) -> None:
    floods = node(clock, containers, number, unread=10**6)
    everyone, windows = [process for flood in floods for process in flood], 30
    run(clock, everyone, windows * WINDOW_S)
    assert handled(everyone) <= (GUARANTEED + SHARED) * (windows + 1) + (containers + 1) * AT_ONCE
    assert handled(everyone) > SHARED * windows, "and no less than that"
    shares = [handled(flood) for flood in floods]
    assert min(shares) > max(shares) / 2, "each container gets its turn"
    shares = [process.handled for process in floods[0]]
    assert min(shares) >= max(shares) / 2, "and each connection"


@pytest.mark.requirement("M5")
def test_an_honest_container_never_waits(clock: Clock) -> None:
    """64 processes that say three things each at the end of each turn of 30 ms, among 40 quiet containers."""
    honest, *_ = node(clock, 40, CONNECTIONS)
    for _ in range(100):
        for process in honest:
            for _ in range(3):
                process.unread = 1
                process.poll()
                assert not process.paused
        clock.pass_by(0.030)
    assert all(process.pauses == 0 and process.handled == 300 for process in honest)


@pytest.mark.requirement("M5")
def test_one_that_says_little_never_waits_beside_floods(clock: Clock) -> None:
    """Six processes in turns of 30 ms with another container, beside nine containers that flood."""
    *floods, honest = node(clock, 10, CONNECTIONS)
    everyone = [process for flood in floods for process in flood]
    for process in everyone:
        process.unread = 10**6
    run(clock, everyone, 0.1)
    for _ in range(10):
        for process in honest[:6]:
            for _ in range(3):
                process.unread = 1
                process.poll()
                assert not process.paused
        run(clock, everyone, 0.060)
    assert all(process.handled == 30 for process in honest[:6])


def test_one_that_leaves_the_line_or_fails_holds_up_nobody(clock: Clock) -> None:
    (flood,) = node(clock, 1, CONNECTIONS, unread=10**6)
    run(clock, flood, 0.1)
    first, second = [process for process in flood if process.paused][:2]
    flood.remove(first)
    first.queue.discard(first)
    first.queue.discard(first)

    def fail() -> None:
        second.ended = True
        raise RuntimeError

    second.close_if_hung_up = fail  # type: ignore[method-assign]
    with pytest.raises(RuntimeError):
        run(clock, flood, 0.1)
    flood.remove(second)
    before = [process.handled for process in flood]
    run(clock, flood, 0.2)
    assert all(process.handled > number for process, number in zip(flood, before, strict=True))
