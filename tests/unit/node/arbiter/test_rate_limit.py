"""What of a container is handled in which time, on a clock that the test moves."""

import heapq
from collections.abc import Callable
from itertools import count
from typing import Any, cast

import pytest

from gputile.node.arbiter.connection import WINDOW_S, ConnectionQueue
from gputile.node.arbiter.rate_limit import (
    MESSAGES_AT_ONCE,
    MESSAGES_PER_S,
    NODE_MESSAGES_AT_ONCE,
    NODE_MESSAGES_PER_S,
    Pool,
    TokenBucket,
)

MOST_READ = 16
CONNECTIONS = 64


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self._numbers = count()
        self._calls: list[tuple[float, int, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[[], None], /) -> None:
        heapq.heappush(self._calls, (self.now + delay, next(self._numbers), callback))

    def pass_by(self, seconds: float) -> None:
        end = self.now + seconds
        while self._calls and self._calls[0][0] <= end:
            self.now, _, callback = heapq.heappop(self._calls)
            callback()
        self.now = end


class Process:
    """One connection: ``unread`` messages are in the kernel, those that it has read are numbered."""

    def __init__(self, line: ConnectionQueue) -> None:
        self.line = line
        self.unread = 0
        self.handled: list[int] = []
        self.pauses = 0
        self.paused = self.gone = self.ended = False
        self._read: list[int] = []
        self._numbers = count()

    @property
    def whole(self) -> int:
        return 0 if self.ended else len(self._read)

    def handle(self, most: int) -> int:
        now = self._read[: min(most, self.whole)]
        self.handled += now
        del self._read[: len(now)]
        return len(now)

    def pause(self) -> None:
        assert not self.paused
        self.paused = True
        self.pauses += 1

    def resume(self) -> None:
        assert self.paused
        self.paused = False

    def end_if_gone(self) -> None:
        if self.gone:
            self.ended = True

    def poll(self) -> None:
        """Do what the event loop does with a connection that can be read."""
        if self.unread and not self.paused and not self.ended:
            size = min(self.unread, MOST_READ - len(self._read))
            assert size > 0, "there is no room to read into"
            self.unread -= size
            self._read += [next(self._numbers) for _ in range(size)]
            self.line.read(cast(Any, self))


@pytest.fixture
def clock() -> Clock:
    return Clock()


def processes(clock: Clock, number: int, unread: int = 0) -> list[Process]:
    line = ConnectionQueue(cast(Any, clock), TokenBucket(MESSAGES_AT_ONCE, MESSAGES_PER_S))
    made = [Process(line) for _ in range(number)]
    for process in made:
        process.unread = unread
    return made


def node(clock: Clock, containers: int, number: int, unread: int) -> list[list[Process]]:
    """Return the processes of so many containers of one node, ``number`` each."""
    pool = Pool(NODE_MESSAGES_AT_ONCE, NODE_MESSAGES_PER_S)
    made = []
    for _ in range(containers):
        line = ConnectionQueue(cast(Any, clock), pool.part(MESSAGES_AT_ONCE, MESSAGES_PER_S))
        made.append([Process(line) for _ in range(number)])
        for process in made[-1]:
            process.unread = unread
    return made


def run(clock: Clock, all_of_them: list[Process], seconds: float) -> None:
    for _ in range(round(seconds * 1000)):
        for _ in range(10):
            for process in all_of_them:
                process.poll()
        clock.pass_by(0.001)


def handled(all_of_them: list[Process]) -> int:
    return sum(len(process.handled) for process in all_of_them)


def test_an_allowance_comes_back_and_is_never_more_than_all() -> None:
    allowance = TokenBucket(10, 100)
    assert allowance.left(5.0) == 10
    allowance.spend(13)
    assert allowance.left(5.0) == 0
    assert allowance.left(5.02) == 0
    assert allowance.left(5.051) == 2
    assert allowance.left(99.0) == 10
    allowance.spend(1000)
    assert allowance.left(99.2) == 10, "no more is owed than there can be"


@pytest.mark.parametrize("number", [1, 16, 48, CONNECTIONS])
def test_as_much_is_handled_however_many_connections_flood(clock: Clock, number: int) -> None:
    flood = processes(clock, number, unread=10**6)
    before = 0
    for window in range(200):
        run(clock, flood, WINDOW_S)
        assert handled(flood) <= MESSAGES_AT_ONCE + MESSAGES_PER_S * WINDOW_S * (window + 1) + 1
        assert window == 0 or handled(flood) - before <= 2 * MESSAGES_PER_S * WINDOW_S
        before = handled(flood)
    assert handled(flood) > MESSAGES_PER_S * 1.9, "and no less than that"
    shares = [len(process.handled) for process in flood]
    assert min(shares) > max(shares) / 2, "each gets its turn"


def test_nothing_of_a_flood_is_lost_or_changes_places(clock: Clock) -> None:
    flood = processes(clock, 5, unread=1003)
    run(clock, flood, 1.0)
    assert all(process.handled == list(range(1003)) and not process.paused for process in flood)


def test_parts_of_messages_cost_as_much(clock: Clock) -> None:
    """Bytes one by one: what is counted is how often the connection is read."""
    (process,) = processes(clock, 1)
    reads = 0
    for _ in range(1000):
        for _ in range(10):
            if not process.paused:
                process.line.read(cast(Any, process))
                reads += 1
        clock.pass_by(0.001)
    assert reads <= 2 * MESSAGES_PER_S + MESSAGES_AT_ONCE
    assert process.pauses > 10


@pytest.mark.requirement("M5")
def test_an_honest_container_never_waits(clock: Clock) -> None:
    """64 processes that say three things each at the end of each turn of 30 ms."""
    honest = processes(clock, CONNECTIONS)
    for _ in range(100):
        for process in honest:
            for _ in range(3):
                process.unread = 1
                process.poll()
                assert not process.paused
        clock.pass_by(0.030)
    assert all(process.pauses == 0 and len(process.handled) == 300 for process in honest)


def test_one_that_dies_in_the_line_is_seen_when_its_turn_comes(clock: Clock) -> None:
    flood = processes(clock, CONNECTIONS, unread=10**6)
    run(clock, flood, 0.5)
    dead = [process for process in flood if process.paused][-1]
    dead.gone = True
    before = len(dead.handled)
    run(clock, flood, CONNECTIONS * MOST_READ / MESSAGES_PER_S + 2 * WINDOW_S)
    assert dead.ended
    assert len(dead.handled) == before
    dead.line.leave(cast(Any, dead))
    run(clock, flood, 0.5)
    assert sum(process.paused for process in flood if process is not dead)


def test_one_that_leaves_the_line_holds_up_nobody(clock: Clock) -> None:
    flood = processes(clock, 16, unread=10**6)
    run(clock, flood, 0.1)
    first = next(process for process in flood if process.paused)
    flood.remove(first)
    first.ended = True
    first.line.leave(cast(Any, first))
    first.line.leave(cast(Any, first))
    before = [len(process.handled) for process in flood]
    run(clock, flood, 0.1)
    assert all(len(process.handled) > number for process, number in zip(flood, before, strict=True))


def test_a_fault_with_one_keeps_nobody_in_the_line(clock: Clock) -> None:
    flood = processes(clock, 16, unread=10**6)
    run(clock, flood, 0.1)
    first = next(process for process in flood if process.paused)

    def fail() -> None:
        if not first.ended:
            first.ended = True
            raise RuntimeError

    first.end_if_gone = fail  # type: ignore[method-assign]
    with pytest.raises(RuntimeError):
        run(clock, flood, 0.1)
    before = handled(flood)
    run(clock, flood, 0.1)
    assert handled(flood) > before


@pytest.mark.requirement("M5")
def test_one_that_says_little_never_waits_beside_floods(clock: Clock) -> None:
    """64 processes in turns of 30 ms with another container, beside nine containers that flood."""
    *floods, honest = node(clock, 10, CONNECTIONS, unread=0)
    all_of_them = [process for flood in floods for process in flood]
    for process in all_of_them:
        process.unread = 10**6
    run(clock, all_of_them, 1.0)
    for _ in range(10):
        for process in honest[:16]:
            for _ in range(3):
                process.unread = 1
                process.poll()
                assert not process.paused
        run(clock, all_of_them, 0.060)
    assert all(len(process.handled) == 30 for process in honest[:16])


def test_what_others_leave_is_there_for_one_that_wants_more(clock: Clock) -> None:
    """One of forty containers has far more than a fortieth while the others say nothing."""
    one, *_ = node(clock, 40, CONNECTIONS, unread=10**6)
    run(clock, one, 1.0)
    assert handled(one) > 0.9 * MESSAGES_PER_S


def test_a_part_of_one_that_is_gone_is_the_others() -> None:
    pool = Pool(100, 1000)
    one, two = pool.part(10, 1000), pool.part(10, 1000)
    assert pool.each == 500
    pool.give_up(two)
    assert pool.each == 1000
    one.spend(10)
    assert one.left(0.0) == 0
