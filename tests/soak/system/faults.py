"""What is done to the system: each fault is drawn from the seed, and undone after a while."""

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx2 as httpx

from gputile.api.well_known import MODE_LABEL
from tests.localcluster.client import ApiError
from tests.localcluster.processes import Process
from tests.soak.system.cluster import CONTROLLERS, EXTENDERS, OURS, SCHEDULERS, System
from tests.soak.system.findings import Findings
from tests.soak.system.keeper import Keeper
from tests.soak.system.lives import Life, Lives
from tests.soak.system.objects import node_of
from tests.soak.system.proxy import Mood

LEASES = "/apis/coordination.k8s.io/v1/namespaces"
CLOCK_JUMPS_S = (-2400, -90, 90, 2400)  # certificates of the control plane are valid from an hour ago
PIECE = bytes(1 << 20)


@dataclass(frozen=True)
class Fault:
    """Something to do, in a ``with`` block that undoes it. ``targets`` are what it may not share with another one."""

    kind: str
    targets: frozenset[str]
    seconds: tuple[float, float]
    doing: Callable[["Faults", random.Random], "contextlib.AbstractContextManager[str]"]
    weight: float = 1.0


@dataclass
class Done:
    """One fault that was done: times are seconds since the beginning."""

    kind: str
    what: str
    begun: float
    ended: float | None = None


@dataclass
class Faults:
    """Does faults in a thread, about one every ``every_s`` seconds and at most two at once."""

    system: System
    lives: Lives
    keeper: Keeper
    findings: Findings
    choice: random.Random
    every_s: float
    only: Sequence[str] = ()
    done: list[Done] = field(default_factory=list)
    problem: BaseException | None = None

    def __post_init__(self) -> None:
        self._ending = threading.Event()
        self._busy: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="faults", daemon=True)
        self._doing: list[threading.Thread] = []
        self.kinds = [each for each in all_faults() if not self.only or each.kind in self.only]
        self.findings.faults = self.since

    def __enter__(self) -> "Faults":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Do no more, and undo what was done."""
        self._ending.set()
        self._thread.join(120)
        for thread in self._doing:
            thread.join(120)

    def since(self, seconds: float) -> list[str]:
        """Return what was done since then, as lines."""
        return [
            f"{each.begun:7.1f} s fault: {each.kind}: {each.what}"
            + (f", until {each.ended:.1f} s" if each.ended is not None else ", still")
            for each in self.done
            if each.ended is None or each.ended >= seconds
        ]

    def _run(self) -> None:
        while not self._ending.wait(self.choice.uniform(0.5, 1.5) * self.every_s):
            free = [each for each in self.kinds if not each.targets & self._busy]
            if len([thread for thread in self._doing if thread.is_alive()]) >= 2 or not free:
                continue
            fault = self.choice.choices(free, [each.weight for each in free])[0]
            self._busy |= fault.targets
            thread = threading.Thread(target=self._do, args=(fault, self.choice.random()), daemon=True)
            self._doing = [each for each in self._doing if each.is_alive()] + [thread]
            thread.start()

    def _do(self, fault: Fault, seed: float) -> None:
        choice = random.Random(seed)
        record = Done(fault.kind, ", ".join(sorted(fault.targets)), self.findings.now())
        self.done.append(record)
        try:
            with fault.doing(self, choice) as what:
                record.what = what
                self._ending.wait(choice.uniform(*fault.seconds))
        except (ApiError, httpx.HTTPError) as error:  # another fault kept us from this one
            record.what += f" (not done: {str(error)[:100]})"
        except BaseException as error:
            self.problem = error
            raise
        finally:
            record.ended = self.findings.now()
            self._busy -= fault.targets


def all_faults() -> list[Fault]:
    """Return every fault there is, with how often each is drawn against the others."""
    killed = (*EXTENDERS, *CONTROLLERS, *SCHEDULERS, "webhook", "kube-controller-manager", "kube-apiserver", "etcd")
    found = [_kill(name) for name in killed]
    found += [_kill("agent", "gateway and agent"), _kill("kubelet"), _kill("containerd")]
    found += [
        Fault("kill: agent", frozenset({"agent"}), (0.0, 0.0), _kill_agent, 2.0),
        Fault("kill: arbiter", frozenset({"agent"}), (0.0, 0.0), _kill_arbiter),
        Fault("disk full", frozenset({"disk"}), (3.0, 20.0), _fill),
        Fault("memory unit", frozenset({"unit"}), (10.0, 30.0), _unit),
        Fault("mode of a node", frozenset({"mode"}), (15.0, 40.0), _mode),
        Fault("Lease deleted", frozenset({"lease"}), (0.0, 0.0), _lease),
        Fault("pods deleted by force", frozenset({"pods"}), (0.0, 0.0), _force, 2.0),
        Fault("relist", frozenset({"kube-apiserver", "etcd", *OURS}), (1.0, 4.0), _relist),
    ]
    found += [_stop(name) for name in (*EXTENDERS, "kube-apiserver")]
    for name in OURS:
        found.append(_proxy("API server cut", name, Mood.CUT, (1.0, 20.0), 0.5))
        found.append(_proxy("API server slow", name, Mood.DELAY, (3.0, 20.0), 0.5))
        found.append(_proxy("answers lost", name, Mood.LOSE, (1.0, 5.0), 0.5))
        found.append(_clock(name))
    return found


def _kill(name: str, what: str = "") -> Fault:
    @contextmanager
    def doing(faults: Faults, choice: random.Random) -> Iterator[str]:
        with _down(faults.system, (name,)):
            yield f"{what or name} killed"

    return Fault(f"kill: {what or name}", frozenset({name}), (0.0, 4.0), doing)


@contextmanager
def _down(system: System, names: Sequence[str]) -> Iterator[None]:
    """Kill processes, and start them again at the end of the block."""
    system.down.update(names)
    for name in names:
        system.process(name).kill()
    try:
        yield
    finally:
        for name in reversed(names):
            start(system.process(name))
        system.down.difference_update(names)


def start(process: Process) -> None:
    """Start a process again."""
    with contextlib.suppress(FileNotFoundError):
        process.start()


def _stop(name: str) -> Fault:
    @contextmanager
    def doing(faults: Faults, choice: random.Random) -> Iterator[str]:
        faults.system.process(name).pause()
        try:
            yield f"{name} stopped for a while (SIGSTOP)"
        finally:
            faults.system.process(name).resume()

    return Fault(f"stop: {name}", frozenset({name}), (2.0, 12.0), doing)


def _proxy(kind: str, name: str, mood: Mood, seconds: tuple[float, float], weight: float) -> Fault:
    @contextmanager
    def doing(faults: Faults, choice: random.Random) -> Iterator[str]:
        delay = choice.choice((0.05, 0.3, 1.0)) if mood is Mood.DELAY else 0.0
        faults.system.proxies.set(name, mood, delay)
        try:
            yield f"{name}: {mood.value}" + (f" by {delay:g} s" if delay else "")
        finally:
            faults.system.proxies.set(name, Mood.PASS)

    return Fault(kind, frozenset({f"proxy of {name}"}), seconds, doing, weight)


def _clock(name: str) -> Fault:
    @contextmanager
    def doing(faults: Faults, choice: random.Random) -> Iterator[str]:
        jump = choice.choice(CLOCK_JUMPS_S)
        faults.system.clocks.set(name, jump)
        try:
            yield f"{name} by {jump:+d} s"
        finally:
            faults.system.clocks.set(name, 0)

    return Fault("clock jumps", frozenset({f"clock of {name}"}), (3.0, 20.0), doing, 0.4)


@contextmanager
def _kill_agent(faults: Faults, choice: random.Random) -> Iterator[str]:
    faults.system.real.agent.kill_agent()
    yield "the agent killed, its gateway not"


@contextmanager
def _kill_arbiter(faults: Faults, choice: random.Random) -> Iterator[str]:
    pids = faults.system.arbiters()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    yield f"{len(pids)} arbiters killed"


@contextmanager
def _fill(faults: Faults, choice: random.Random) -> Iterator[str]:
    filler = Path(faults.system.state) / "filler"
    try:
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while file.write(PIECE) == len(PIECE):
                pass
        yield "the agent's state directory full"
    finally:
        filler.unlink(missing_ok=True)


@contextmanager
def _unit(faults: Faults, choice: random.Random) -> Iterator[str]:
    system, before = faults.system, faults.system.unit_mib
    unit = choice.choice((512, 2048))
    system.configure(unit)
    try:
        yield f"{before} to {unit} MiB"
    finally:
        system.configure(before)


@contextmanager
def _mode(faults: Faults, choice: random.Random) -> Iterator[str]:
    """Change a played node's mode, and delete its pods by and by, so that it comes into force."""
    system = faults.system
    node = choice.choice(system.played_nodes)
    before = system.plane.api.get(f"/api/v1/nodes/{node}")["metadata"]["labels"][MODE_LABEL]
    mode = choice.choice([each for each in ("cgpu", "core_mem", "share", "default", "topology") if each != before])
    system.plane.nodes.label(node, {MODE_LABEL: mode})
    try:
        for life in faults.lives.alive(lambda life: _is_on(life, node)):
            faults.keeper.force(life, "its node changes its mode")
        yield f"{node} from {before} to {mode}"
    finally:
        _insist(lambda: system.plane.nodes.label(node, {MODE_LABEL: before}))


def _insist(deed: Callable[[], object]) -> None:
    """Do what an API server that is away may refuse, until it does not."""
    deadline = time.monotonic() + 120
    while True:
        try:
            deed()
        except (ApiError, httpx.HTTPError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)
        else:
            return


def _is_on(life: Life, node: str) -> bool:
    return life.pod is not None and node_of(life.pod) == node


@contextmanager
def _lease(faults: Faults, choice: random.Random) -> Iterator[str]:
    namespace, name = choice.choice(
        (("gputile", "gputile-extender"), ("gputile", "gputile-controller"), ("kube-system", "kube-scheduler"))
    )
    faults.system.plane.api.delete(f"{LEASES}/{namespace}/leases/{name}")
    yield name


@contextmanager
def _force(faults: Faults, choice: random.Random) -> Iterator[str]:
    there = faults.lives.alive(lambda life: life.created is not None)
    taken = choice.sample(there, min(len(there), choice.randint(1, 12)))
    for life in taken:
        faults.keeper.force(life, "a fault")
    yield f"{len(taken)} pods"


@contextmanager
def _relist(faults: Faults, choice: random.Random) -> Iterator[str]:
    """Cut everybody off while the API server restarts: what they had seen last is too old for it then (410)."""
    for name in OURS:
        faults.system.proxies.set(name, Mood.CUT)
    try:
        time.sleep(3)  # for pods to change unseen: a restarted API server knows no changes from before its start
        with _down(faults.system, ("kube-apiserver",)):
            yield "all cut off, and the API server restarted"
        faults.system.plane.wait(faults.system.plane.api.healthy, "the API server", 120)
        time.sleep(2)
    finally:
        for name in OURS:
            faults.system.proxies.set(name, Mood.PASS)
