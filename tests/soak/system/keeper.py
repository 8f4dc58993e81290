"""Creates the pods at a bounded rate, plays the kubelet for those on played nodes, and ends each as it was planned."""

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2 as httpx

from tests.localcluster.client import STRATEGIC_PATCH, Api, ApiError
from tests.localcluster.nodes import now as timestamp
from tests.soak.system.findings import Findings
from tests.soak.system.lives import Life, Lives
from tests.soak.system.objects import annotation, node_of
from tests.soak.system.workload import Planned

LOOK_EVERY_S = 0.25
AGAIN_AFTER_S = 4.0
WORKERS = 6
CREATORS = 4
CATCHES_UP_S = 60.0  # of what could not be created in time
WHY_AFTER_S = 3.0  # how long an impossible pod may say why it is pending
AWAY = ("failed calling webhook", "connection refused", "context deadline exceeded", "etcdserver", "EOF", "not found")


class Keeper:
    """``unit_mib`` is the memory unit in force; at most ``most`` pods are there at once, ``most_real`` on the node."""

    def __init__(
        self,
        api: Api,
        lives: Lives,
        findings: Findings,
        pods: Iterator[Planned],
        unit_mib: Callable[[], int],
        *,
        rate: float,
        most: int,
        most_real: int,
    ) -> None:
        self._api, self._lives, self._findings, self._pods = api, lives, findings, pods
        self._unit_mib, self._rate, self._most, self._most_real = unit_mib, rate, most, most_real
        self._ending, self._no_more = threading.Event(), threading.Event()
        self._wanted: queue.Queue[Life] = queue.Queue(maxsize=8)
        self._workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="keeper")
        self._threads = [threading.Thread(target=self._guarded, args=(each,), daemon=True) for each in self._jobs()]
        self.all_created = threading.Event()
        self.problem: BaseException | None = None

    def _jobs(self) -> list[Callable[[], None]]:
        return [self._plan, *[self._create_all] * CREATORS, self._look_all]

    def __enter__(self) -> "Keeper":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._no_more.set()
        self._ending.set()
        for thread in self._threads:
            thread.join(60)
        self._workers.shutdown(cancel_futures=True)

    def no_more(self) -> None:
        """Create no more pods, but for the rest of a gang."""
        self._no_more.set()

    def _guarded(self, job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:
            self.problem = error
            raise

    def _plan(self) -> None:
        """Give pods to those who create them, as room and rate allow; those of one gang are not parted."""
        due, gang = time.monotonic(), ""
        for planned in self._in_turn():
            together = bool(planned.gang) and planned.gang == gang
            while not (together or self._ending.is_set() or self._no_more.is_set()):
                if time.monotonic() >= due and len(self._lives.alive()) < self._most:
                    break
                time.sleep(0.02)
            if self._ending.is_set() or (self._no_more.is_set() and not together):
                break
            gang, due = planned.gang, max(due + 1 / self._rate, time.monotonic() - CATCHES_UP_S)
            life = self._lives.announce(planned)
            while not self._ending.is_set():
                with contextlib.suppress(queue.Full):
                    self._wanted.put(life, timeout=0.5)
                    break
        self.all_created.set()

    def _in_turn(self) -> Iterator[Planned]:
        """Yield the pods, those for the real node when it has room: nobody waits for that."""
        later: deque[Planned] = deque()
        for planned in self._pods:
            if planned.real:
                later.append(planned)
            else:
                yield planned
            if later and not planned.gang and self._real_room():
                yield later.popleft()
        while later and not self._no_more.is_set():
            if self._real_room():
                yield later.popleft()
            time.sleep(0.1)

    def _real_room(self) -> bool:
        return len(self._lives.alive(lambda life: life.planned.real)) < self._most_real

    def _create_all(self) -> None:
        while not self._ending.is_set():
            with contextlib.suppress(queue.Empty):
                self._create(self._wanted.get(timeout=0.5))

    def _create(self, life: Life) -> None:
        """Create a pod, and go on until it is there, as a workload's controller does."""
        planned, since = life.planned, time.monotonic()
        while not self._ending.is_set():
            try:
                self._api.post(f"/api/v1/namespaces/{planned.namespace}/pods", planned.body)
            except ApiError as error:
                if error.status == 409:  # it was created before, and the answer was lost
                    break
                if error.status < 500 and error.status != 429 and not any(words in str(error) for words in AWAY):
                    self._findings.violated("every valid pod is admitted", f"{planned.key}: {error}", [planned.key])
                    self._lives.lost([planned.key])
                    return
                self._findings.count("creations that were tried again")
                life.tell(self._findings.now(), f"is refused: {str(error)[:200]}")
            except httpx.HTTPError as error:
                self._findings.count("creations that were tried again")
                life.tell(self._findings.now(), f"is not created: {error!r}")
            else:
                break
            time.sleep(0.3)
        self._findings.lasted("until a pod was admitted", time.monotonic() - since, planned.key)
        self._findings.count(f"pods {planned.kind}")

    def _look_all(self) -> None:
        while not self._ending.wait(LOOK_EVERY_S):
            now = self._findings.now()
            for life in self._lives.alive(lambda life: life.created is not None):
                deed = self._due(life, now) if life.again <= now else None
                if deed is not None:
                    life.again = now + AGAIN_AFTER_S
                    self._workers.submit(self._do, life, deed)

    def _due(self, life: Life, now: float) -> Callable[[Life], None] | None:
        """Return what is to be done for a pod at this moment."""
        planned, pod = life.planned, life.pod
        assert pod is not None
        if pod["metadata"].get("deletionTimestamp"):
            return None  # its kubelet ends it
        if life.deleted_for:
            return self._forced if planned.end == "forced" else self._deleted
        if life.phase in ("Succeeded", "Failed"):
            return self._over
        if not node_of(pod):
            return self._due_unbound(life, now)
        gang = self._lives.gang_of(life)
        if gang is not None and not gang.whole and not gang.broken:
            return self._runs if life.phase == "Pending" else None
        if life.phase == "Pending" and not planned.real:
            return self._runs
        since = max(life.running or now, gang.whole if gang is not None else 0.0)
        if life.running is None or now < since + planned.seconds:
            return None
        return {"succeeds": self._succeeds, "deleted": self._planned_end, "forced": self._planned_end}[planned.end]

    def _due_unbound(self, life: Life, now: float) -> Callable[[Life], None] | None:
        long_enough = life.reasoned is not None and now > life.reasoned + WHY_AFTER_S
        if not life.planned.possible and long_enough and life.reason:
            return self._impossible
        gang = self._lives.gang_of(life)
        if gang is not None and gang.broken and long_enough:
            return self._of_a_broken_gang
        if self._other_unit(life) and long_enough and self._no_more.is_set():
            return self._of_another_unit
        return None

    def _other_unit(self, life: Life) -> bool:
        """Return whether the pod was stamped with a unit that is not in force any more: it is to wait for ever."""
        stamped = annotation(life.pod, "gputile.io/memory-unit-mib") if life.pod is not None else None
        return stamped is not None and int(stamped) != self._unit_mib()

    def _do(self, life: Life, deed: Callable[[Life], None]) -> None:
        since = time.monotonic()
        try:
            deed(life)
            self._findings.lasted("a write of our own", time.monotonic() - since, life.planned.key)
        except ApiError as error:
            if error.status != 404:
                life.tell(self._findings.now(), f"asked in vain: {str(error)[:200]}")
        except httpx.HTTPError as error:
            life.tell(self._findings.now(), f"asked in vain: {error!r}")

    def _status(self, life: Life, phase: str) -> None:
        ready = {
            "type": "Ready",
            "status": "True" if phase == "Running" else "False",
            "lastTransitionTime": timestamp(),
        }
        status = {"phase": phase, "startTime": timestamp(), "conditions": [ready]}
        self._api.patch(f"{_path(life)}/status", {"status": status}, STRATEGIC_PATCH)

    def _runs(self, life: Life) -> None:
        self._status(life, "Running")

    def _succeeds(self, life: Life) -> None:
        self._status(life, "Succeeded")

    def _count(self, life: Life, what: str) -> None:
        """Count what is done for a pod once, although it may be tried several times."""
        if not life.deleted_for:
            self._findings.count(what)

    def _over(self, life: Life) -> None:
        self._count(life, "pods that ended by themselves" if life.phase == "Succeeded" else "pods that failed")
        self._delete(life, "it is over", now=not life.planned.real)

    def _planned_end(self, life: Life) -> None:
        self._count(life, f"pods {life.planned.end}")
        self._delete(life, "its time is over", now=life.planned.end == "forced")

    def _impossible(self, life: Life) -> None:
        self._count(life, "pods pending with a reason, as they must")
        self._delete(life, "it can never start", now=True)

    def _of_another_unit(self, life: Life) -> None:
        self._count(life, "pods of a unit that is not in force any more")
        self._delete(life, "its unit is not in force any more", now=True)

    def _of_a_broken_gang(self, life: Life) -> None:
        self._count(life, "pods of gangs that we took pods from")
        self._delete(life, "we took pods from its gang", now=True)

    def _deleted(self, life: Life) -> None:
        self._delete(life, life.deleted_for, now=False)

    def _forced(self, life: Life) -> None:
        self._delete(life, life.deleted_for, now=True)

    def _delete(self, life: Life, why: str, *, now: bool) -> None:
        self._lives.delete_for(life, why)
        body: dict[str, Any] | None = {"gracePeriodSeconds": 0} if now else None
        self._api.delete(_path(life), body)

    def force(self, life: Life, why: str) -> None:
        """Delete a pod by force, whatever was planned for it."""
        with contextlib.suppress(ApiError, httpx.HTTPError):  # gone already, or nobody answers
            self._delete(life, why, now=True)


def _path(life: Life) -> str:
    return f"/api/v1/namespaces/{life.planned.namespace}/pods/{life.planned.name}"
