"""One run: everything is started, pods come and go, faults are done, and what must hold is judged all the time."""

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import grpc
import httpx2 as httpx

from tests.localcluster.client import ApiError, text_at
from tests.soak.system.agreement import NodeJudge
from tests.soak.system.cluster import CONTROLLERS, EXTENDERS, OURS, System, whole_system
from tests.soak.system.deaths import died_of, raised
from tests.soak.system.faults import Done, Faults, start
from tests.soak.system.findings import Findings
from tests.soak.system.judge import over_allocations
from tests.soak.system.keeper import Keeper
from tests.soak.system.lives import Life, Lives
from tests.soak.system.memory import Memory
from tests.soak.system.objects import node_of
from tests.soak.system.programs import Programs
from tests.soak.system.watching import Mirror
from tests.soak.system.workload import RULES, workload

AGREE_WITHIN_S = 120.0  # how long what is known of a container on the node may differ, faults included
GANG_WHOLE_WITHIN_S = 180.0  # how long a gang may run in part, faults included
REASON_WITHIN_S = 120.0  # how long a pod may be pending without saying why, faults included
DRAINED_WITHIN_S = 300.0  # how long the rest may take once nothing is done to the system any more
EMPTY_WITHIN_S = 120.0
LOOK_EVERY_S = 1.0
LINES = {"listing again": "lists after 410", "Traceback (most recent call last)": "tracebacks in the log"}
NO_ERRORS = "no component dies of an error"
NEVER_SAID = ("gangs are left to the next round",)  # by a controller that knows two things of one pod


@dataclass
class Options:
    """What a run is to do."""

    minutes: float
    pods: int
    seed: int
    fault_every_s: float
    report: Path
    only: tuple[str, ...] = ()
    most: int = 200
    most_real: int = 12
    real_every: int = 60


@dataclass
class Run:
    """A run and what it found. ``say`` is told how far it is."""

    options: Options
    say: Callable[[str], object]
    findings: Findings = field(default_factory=Findings)
    memory: Memory = field(default_factory=Memory)
    done: list[Done] = field(default_factory=list)
    lives: Lives = field(init=False)

    def __post_init__(self) -> None:
        self.lives = Lives(self.findings)
        self._told = 0  # violations
        self._wrong_since: dict[str, tuple[float, str]] = {}
        self._stopping = threading.Event()

    def execute(self) -> None:
        """Do it all; what was found is in ``findings``."""
        with whole_system(lambda what: self.say(f"starting {what}")) as system, ExitStack() as stack:
            self.findings.begun = time.monotonic()
            try:
                self._soak(system, stack)
            finally:
                self._keep_logs(system)

    def _soak(self, system: System, stack: ExitStack) -> None:
        options = self.options
        pods = stack.enter_context(Mirror(system.plane.api, "/api/v1/pods", self.lives.take))
        nodes = stack.enter_context(Mirror(system.plane.api, "/api/v1/nodes"))
        rate = max(0.5, options.pods / (options.minutes * 60 * 0.85))
        keeper = stack.enter_context(
            Keeper(
                system.plane.api,
                self.lives,
                self.findings,
                workload(options.seed, options.pods, options.real_every, min(240.0, options.minutes * 15)),
                lambda: system.unit_mib,
                rate=rate,
                most=options.most,
                most_real=options.most_real,
            )
        )
        choice = random.Random(f"faults {options.seed}")
        faults = Faults(system, self.lives, keeper, self.findings, choice, options.fault_every_s, options.only)
        self.done = faults.done
        work = Programs(system.gpus, system.state, self.findings, random.Random(f"programs {options.seed}"))
        stack.enter_context(work)
        stack.enter_context(self._in_threads(system, pods, nodes, work))
        with faults:
            end = time.monotonic() + options.minutes * 60
            while time.monotonic() < end and not (keeper.all_created.is_set() and not self.lives.alive()):
                time.sleep(LOOK_EVERY_S)
                for part in (keeper, faults, pods, nodes):
                    if part.problem is not None:
                        raise part.problem
            keeper.no_more()
        self.say("faults are over; the rest of the pods")
        self._drain(system, keeper)
        self._at_the_end(system)

    @contextlib.contextmanager
    def _in_threads(self, system: System, pods: Mirror, nodes: Mirror, work: Programs) -> Iterator[None]:
        node_judge = NodeJudge(system.real, system.state)
        jobs: dict[str, Callable[[], None]] = {
            "judge": lambda: self._judge(pods, nodes),
            "agreement": lambda: self._agree(node_judge, pods),
            "programs": work.look,
            "supervisor": lambda: self._supervise(system),
            "memory": lambda: self.memory.sample(system.memory(), self.findings.now()),
            "progress": self._tell,
        }
        every = {"memory": 5.0, "progress": 5.0, "agreement": 2.0}
        threads = [
            threading.Thread(target=self._repeat, args=(job, every.get(name, LOOK_EVERY_S)), name=name, daemon=True)
            for name, job in jobs.items()
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            for thread in threads:
                thread.join(60)

    def _repeat(self, job: Callable[[], None], every_s: float) -> None:
        while not self._stopping.wait(every_s):
            try:
                job()
            except (ApiError, httpx.HTTPError, grpc.RpcError, OSError) as error:
                self.findings.count(f"looks in vain: {type(error).__name__}")
            except Exception as error:
                self.findings.violated("the soak itself works", repr(error))
                raise

    def _judge(self, pods: Mirror, nodes: Mirror) -> None:
        for text in over_allocations(nodes.all(), pods.all(), RULES):
            key = text.partition(" MiB, and ")[0]
            involved = [life.planned.key for life in self.lives.alive() if life.planned.key in text]
            self.findings.violated("no GPU is over-allocated", text, involved, key=key)
        self.findings.count("looks at all GPUs")
        now = self.findings.now()
        for name, gang in list(self.lives.gangs.items()):
            if gang.first and not gang.whole and not gang.broken and gang.in_part_for(now) > GANG_WHOLE_WITHIN_S:
                text = f"{name}: {len(gang.bound)} of {gang.size} pods are bound for {gang.in_part_for(now):.0f} s"
                self.findings.violated("no gang runs in part", text, sorted(gang.created), key=name)
        for life in self.lives.alive(lambda life: life.created is not None and life.bound is None and not life.reason):
            waits = now - (life.created or now)
            if waits > REASON_WITHIN_S:
                key = life.planned.key
                self.findings.violated("a pending pod says why", f"{key} is pending for {waits:.0f} s", [key], key=key)

    def _agree(self, judge: NodeJudge, pods: Mirror) -> None:
        look, now = judge.look(pods.all()), self.findings.now()
        self.findings.count("containers compared on the real node", look.compared)
        before, self._wrong_since = self._wrong_since, {}
        for name, text in look.wrong.items():
            since, _ = self._wrong_since[name] = (before.get(name, (now, ""))[0], text)
            if now - since > AGREE_WITHIN_S:
                promise = "annotation, kubelet, limits and container agree"
                pod = name.rpartition("/")[0]
                self.findings.violated(promise, f"{name} for {now - since:.0f} s: {text}", [pod], key=name)
        for name, (since, text) in before.items():
            self.findings.lasted("out of agreement on the real node", now - since, f"{name}: {text}")

    def _supervise(self, system: System) -> None:
        """Start again what has ended by itself, as a kubelet would.

        What is ours may end where it cannot go on, and say so; it may not die of an error that nobody thought of.
        """
        for name in system.names():
            process = system.process(name)
            if name not in system.down and not process.alive and name not in system.down:
                self.findings.count(f"ended by itself: {name} with exit code {process.exit_code}")
                if name in OURS and (error := died_of(process.log.read_text(errors="replace"))):
                    self.findings.violated(NO_ERRORS, f"{name}: {error}")
                start(process)

    def _tell(self) -> None:
        alive, all_of = self.lives.alive(), list(self.lives.all.values())
        states = {"bound": 0, "waiting": 0}
        for life in alive:
            states["bound" if life.bound is not None else "waiting"] += 1
        active = [f"{each.kind}: {each.what}" for each in self.done if each.ended is None]
        self.say(
            f"{self.findings.now():5.0f} s  pods {len(all_of)}/{self.options.pods}, {states['bound']} bound, "
            f"{states['waiting']} waiting, {len(self.done)} faults, {len(self.findings.violations)} violations"
            + (f"  [{'; '.join(active)}]" if active else "")
        )
        for violation in self.findings.violations[self._told :]:
            self.say(f"      {violation.at:.0f} s: {violation.promise}: {violation.text}")
        self._told = len(self.findings.violations)

    def _drain(self, system: System, keeper: Keeper) -> None:
        """Wait until all pods have ended as they were planned to."""
        deadline = time.monotonic() + DRAINED_WITHIN_S
        while time.monotonic() < deadline and (self.lives.alive() or not keeper.all_created.is_set()):
            if keeper.problem is not None:
                raise keeper.problem
            time.sleep(LOOK_EVERY_S)
        for life in self.lives.alive():
            key = life.planned.key
            self.findings.violated("every pod starts and ends", f"{key} is {_state(life)}", [key], key=key)
        self.findings.count("pods in all", len(self.lives.all))

    def _at_the_end(self, system: System) -> None:
        """With all pods gone, nobody holds anything, and nobody has grown."""
        self.say("all pods are over; what is left")
        wanted = {f"gputile_ledger_{name}": 0.0 for name in ("bookings", "unconfirmed_bindings", "overallocated_gpus")}
        for name in EXTENDERS:
            self._settles(f"the ledger of {name} is empty", partial(_metrics, system, name, wanted))
        kept = {"gputile_controller_reserved_pods": 0.0}
        kept["gputile_controller_gangs_waiting_since_timestamp_seconds"] = 0.0
        for name in CONTROLLERS:
            self._settles(f"{name} keeps nothing", partial(_metrics, system, name, kept))
        judge = NodeJudge(system.real, system.state)
        self._settles("kubelet and agent hold nothing", judge.is_empty)
        self._settles("the agent counts no pods", lambda: _metrics(system, "agent", {"gputile_agent_pods": 0.0}))
        time.sleep(6.0)  # for the last samples
        for text in self.memory.grown(self.findings.now()):
            self.findings.violated("memory stays as it was", text)

    def _settles(self, promise: str, wrong: Callable[[], str]) -> None:
        deadline, text = time.monotonic() + EMPTY_WITHIN_S, "nobody answers"
        while time.monotonic() < deadline:
            with contextlib.suppress(ApiError, httpx.HTTPError, grpc.RpcError, OSError):
                text = wrong()
                if not text:
                    return
            time.sleep(LOOK_EVERY_S)
        self.findings.violated(promise, text)

    def _keep_logs(self, system: System) -> None:
        target = self.options.report / "logs"
        target.mkdir(parents=True, exist_ok=True)
        for directory in (system.plane.directory, system.real.node.directory):
            for path in directory.glob("*.log"):
                (target / path.name).write_bytes(path.read_bytes())
                if path.stem in OURS:
                    self._count_lines(path)

    def _count_lines(self, log: Path) -> None:
        """Count what a component of ours has said that one wants to know of."""
        text = log.read_text(errors="replace")
        known = {each.text for each in self.findings.violations}
        for error in sorted(set(raised(text))):
            if f"{log.stem}: {error}" not in known:
                self.findings.violated(NO_ERRORS, f"{log.stem}, or a process of its own: {error}")
        for line, what in LINES.items():
            if found := text.count(line):
                self.findings.count(f"{what}: {log.stem}", found)
        for line in text.splitlines():
            if any(each in line for each in NEVER_SAID):
                self.findings.violated("what is known of a pod is one thing", f"{log.stem}: {line}", key=log.stem)


def _state(life: Life) -> str:
    where = f"on {node_of(life.pod)}" if life.pod is not None and node_of(life.pod) else "on no node"
    return f"{life.phase or 'not created'} {where}: {life.reason or 'it says no reason'}"


def _metrics(system: System, name: str, wanted: dict[str, float]) -> str:
    """Return which numbers of a component are not as wanted."""
    lines = text_at(f"{system.urls[name]}/metrics").splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    found = {key: float(value) for key, _, value in pairs if key in wanted}
    return "" if found == wanted else f"{found} instead of {wanted}"
