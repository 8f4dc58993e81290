"""Simulated clients of one GPU's turns, on a clock of their own: what the policy gives them, in device time."""

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field

from gputile.node.arbiter.accounts import WHOLE, Account, Grant, Limit, Share, TimesliceMessage
from gputile.node.arbiter.node_timeslices import GpuMessages, NodeTimeSlices
from gputile.node.arbiter.timeslice_scheduler import MS


def percent(part: int) -> Share:
    return Share(part, WHOLE // 100 * part, WHOLE // 100 * part)


class OneGpu:
    """A node with one GPU, which nobody has to name."""

    def __init__(self, quantum: int = 30 * MS, longest_wait: int = 1000 * MS) -> None:
        self.quantum = quantum
        self._node = NodeTimeSlices(quantum, longest_wait)
        self.put("nobody", Share(), 0)
        self.remove("nobody", 0)

    @property
    def accounts(self) -> dict[str, Account]:
        return self._node.gpus["A"].accounts

    @property
    def holders(self) -> frozenset[int]:
        return self._node.gpus["A"].holders

    def used(self, name: str) -> int:
        return self.accounts[name].reported_use()

    def waited(self, name: str, now: int) -> int:
        return self.accounts[name].waited_until(now)

    def put(self, name: str, share: Share, now: int) -> list[TimesliceMessage]:
        return _messages(self._node.set_share("A", name, share, now))

    def remove(self, name: str, now: int) -> list[TimesliceMessage]:
        return _messages(self._node.remove("A", name, now))

    def leave(self, member: int, now: int) -> list[TimesliceMessage]:
        return _messages(self._node.leave("A", member, now))

    def want(self, name: str, member: int, now: int) -> list[TimesliceMessage]:
        return _messages(self._node.want("A", name, member, now))

    def busy(self, member: int, number: int, now: int) -> list[TimesliceMessage]:
        return _messages(self._node.busy("A", member, number, now))

    def done(self, member: int, number: int, used: int, again: bool, now: int) -> list[TimesliceMessage]:
        return _messages(self._node.done("A", member, number, used, again, now))

    def tick(self, now: int) -> list[TimesliceMessage]:
        return _messages(self._node.tick("A", now))

    def wake_at(self, now: int) -> int | None:
        return self._node.wake_at("A", now)


def _messages(said: GpuMessages) -> list[TimesliceMessage]:
    return [message for _, message in said]


@dataclass
class Client:
    """A process that is always busy, with kernels of ``kernel`` ns; it comes back ``back`` ns after its turn."""

    name: str
    share: Share
    kernel: int = 1 * MS
    back: int = 0
    busy: int = 0
    longest_wait: int = 0
    asked: int = 0
    starts: list[int] = field(default_factory=list)


class Machine:
    """Runs clients against the turns of one GPU until a moment; ``late`` says when the others come."""

    def __init__(
        self,
        clients: list[Client],
        quantum: int = 30 * MS,
        longest_wait: int = 1000 * MS,
        late: Mapping[int, int] | None = None,
    ) -> None:
        self.turns = OneGpu(quantum, longest_wait)
        self.clients = clients
        self.now = 0
        self._events: list[tuple[int, int, str, int, int]] = []
        self._count = 0
        self._began: dict[int, tuple[int, int]] = {}
        self._returns: dict[int, int] = {}
        for number, client in enumerate(clients):
            self.turns.put(client.name, client.share, 0)
            self._at((late or {}).get(number, number), "want", number)

    def run(self, until: int) -> None:
        while True:
            wake = self.turns.wake_at(self.now)
            upcoming = self._events[0][0] if self._events else until
            if wake is not None and wake < upcoming and wake < until:
                self.now = max(self.now, wake)
                self._follow(self.turns.tick(self.now))
                continue
            if upcoming >= until or not self._events:
                self.now = until
                return
            at, _, what, number, turn = heapq.heappop(self._events)
            self.now = max(self.now, at)
            self._happen(what, number, turn)

    def runs_for(self, number: int) -> int:
        """Return for how long a client has had the turn that it has now."""
        return self.now - self._began[number][0] if number in self._began else 0

    def shares(self) -> list[float]:
        return [client.busy / self.now for client in self.clients]

    def _at(self, at: int, what: str, number: int, turn: int = 0) -> None:
        self._count += 1
        heapq.heappush(self._events, (at, self._count, what, number, turn))

    def _happen(self, what: str, number: int, turn: int) -> None:
        client = self.clients[number]
        if what == "want":
            client.asked = self.now
            self._follow(self.turns.want(client.name, number, self.now))
        elif what == "busy":
            self._follow(self.turns.busy(number, turn, self.now))
        elif self._returns.get(number) == self.now and number in self._began:
            began, _ = self._began.pop(number)
            client.busy += self.now - began
            again = client.back == 0
            client.asked = self.now
            self._follow(self.turns.done(number, turn, self.now - began, again, self.now))
            if not again:
                self._at(self.now + client.back, "want", number)

    def _follow(self, said: list[TimesliceMessage]) -> None:
        assert len({self.clients[i.member].name for i in said if isinstance(i, Grant)}) <= 1
        for instruction in said:
            client = self.clients[instruction.member]
            match instruction:
                case Grant(member, turn, length):
                    assert all(m == member for m in self._began), "two holders at once"
                    self._began[member] = (self.now, turn)
                    client.starts.append(self.now)
                    client.longest_wait = max(client.longest_wait, self.now - client.asked)
                    if length:
                        self._return(member, turn, length)
                case Limit(member, turn, remaining):
                    self._return(member, turn, remaining)

    def _return(self, member: int, turn: int, length: int) -> None:
        """Give the turn back when the kernel that runs at its end is done."""
        began = self._began[member][0]
        kernel = self.clients[member].kernel
        done = began + -(-(self.now + length - began) // kernel) * kernel
        self._returns[member] = max(done, self.now)
        for at in range(self.now + length, self._returns[member], self.turns.quantum // 2):
            self._at(at, "busy", member, turn)
        self._at(self._returns[member], "done", member, turn)
