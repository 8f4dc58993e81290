"""A bind never loses track of a Binding, however its answer goes wrong (a lost answer never leaks or doubles)."""

import asyncio
import copy
from collections.abc import Awaitable, Callable

import pytest

from gputile.api.core import Pod
from gputile.api.well_known import ALLOCATION_ANNOTATION
from gputile.controlplane.extender.binder import ANSWER_LOST_FOR_GOOD_S, CONFIRMATION_S, Binder, BindError
from gputile.controlplane.extender.informer import Informer
from gputile.core.devices.allocation import allocate, binding_annotations, decode_allocation
from gputile.core.devices.inventory import Gpu
from gputile.core.scheduling.placement_engine import PlacementEngine
from gputile.kube.errors import AnswerLost, ApiError, Forbidden, KubeError, ServerError, TooManyRequests, Unauthorized
from gputile.kube.objects import Replaced
from tests.fakes.corebuilders import ledger_of, request_of
from tests.fakes.coroutines import at_once
from tests.unit.controlplane.extender.builders import gpu_node, gpu_pod
from tests.unit.controlplane.extender.cluster import Fate, ModelCluster

pytestmark = pytest.mark.requirement("B1")


class Bench:
    """A binder on a model cluster, with a clock that only moves when told."""

    def __init__(self, *fates: Fate, next_fate: Callable[[], Fate] | None = None) -> None:
        script = iter(fates)
        self.now = 1000.0
        self.cluster = ModelCluster(next_fate or (lambda: next(script)))
        self.ledger = ledger_of(gpu_node("a"), gpu_node("b"))
        self.binder = Binder(PlacementEngine(self.ledger), self.cluster, lambda: self.now, lambda: 1)

    def create(self, name: str, units: int = 5, uid: str = "") -> Pod:
        pod = gpu_pod(name, units, uid=uid)
        self.cluster.add(pod)
        return copy.deepcopy(pod)

    async def bind(self, pod: Pod, node: str) -> bool:
        try:
            await self.binder.bind(pod, node)
        except BindError:
            return False
        return True

    def watch(self) -> None:
        """Deliver what the API server holds, as the watch would."""
        for pod in self.cluster.pods.values():
            self.ledger.apply_pod(copy.deepcopy(pod))

    def used(self) -> dict[str, int]:
        return {
            node_info.name: int(self.ledger.node_arrays.used[row].sum()) // 1024
            for row, node_info in self.ledger.nodes()
        }


@pytest.mark.anyio
@pytest.mark.requirement("B1")
@pytest.mark.parametrize(
    "error",
    [
        ServerError(500, "InternalError", "etcd is slow"),
        TooManyRequests(429, "TooManyRequests", "later"),
        Unauthorized(401, "Unauthorized", "the token has expired"),
        AnswerLost("timed out"),
    ],
)
async def test_an_api_server_that_has_a_bad_time_may_still_execute_a_binding(error: KubeError) -> None:
    """Not to be able to write now is not to be allowed to write: the GPUs stay taken however long it lasts."""
    bench = Bench(Fate.LOST_LATE, Fate.OK)
    bench.cluster.refuses_writes = error
    assert not await bench.bind(bench.create("p", 15), "a")
    for _ in range(3):
        bench.now += ANSWER_LOST_FOR_GOOD_S + 1
        await bench.binder.resolve_unconfirmed()
        assert bench.used() == {"a": 15, "b": 0}
    assert not await bench.binder.conclude()
    bench.cluster.execute_late()
    bench.cluster.refuses_writes = None
    await bench.binder.resolve_unconfirmed()
    assert bench.used() == {"a": 15, "b": 0}
    assert bench.cluster.pods["default", "p"].spec.node_name == "a"


@pytest.mark.anyio
@pytest.mark.parametrize(
    "error",
    [
        Forbidden(403, "Forbidden", "pods/status"),
        ApiError(400, "BadRequest", "admission webhook denied the request: without explanation"),
        ApiError(413, "RequestEntityTooLarge", "etcdserver: request is too large"),
    ],
)
async def test_where_writing_is_refused_for_good_the_api_server_is_given_its_time(error: ApiError) -> None:
    """An admission webhook that denies without naming a code makes it a 400."""
    bench = Bench(Fate.LOST_NEVER)
    bench.cluster.refuses_writes = error
    assert not await bench.bind(bench.create("p"), "a")
    await bench.binder.resolve_unconfirmed()
    assert bench.used() == {"a": 5, "b": 0}
    bench.now += ANSWER_LOST_FOR_GOOD_S + 1
    await bench.binder.resolve_unconfirmed()
    assert bench.used() == {"a": 0, "b": 0}


@pytest.mark.anyio
async def test_a_pod_that_is_written_to_all_the_time_is_tried_a_few_times_only() -> None:
    bench = Bench(*[Fate.OK] * 50)
    pod = bench.create("p")
    read = bench.cluster.pod

    async def busy(namespace: str, name: str) -> Pod | None:
        found = await read(namespace, name)
        bench.cluster.touch(bench.cluster.pods[namespace, name])
        return found

    bench.cluster.pod = busy  # type: ignore[method-assign]
    bench.cluster.touch(bench.cluster.pods["default", "p"])
    assert not await bench.bind(pod, "a")
    assert len(bench.cluster.sent) < 10
    assert bench.used() == {"a": 0, "b": 0}


@pytest.mark.anyio
async def test_a_caller_that_goes_away_stops_nothing() -> None:
    bench = Bench(Fate.OK)
    task = asyncio.create_task(bench.bind(bench.create("p"), "a"))
    await asyncio.sleep(0)
    task.cancel()
    await bench.binder.conclude()
    assert bench.cluster.pods["default", "p"].spec.node_name == "a"


def overtaken(bench: Bench, meanwhile: Callable[[Pod], None]) -> None:
    """Let the watch say something newer while the answer to a read, or to a fence, is on its way."""

    def delayed(ask: Callable[[str, str], Awaitable[Pod | None]]) -> Callable[[str, str], Awaitable[Pod | None]]:
        async def answer(namespace: str, name: str) -> Pod | None:
            found = copy.deepcopy(await ask(namespace, name))
            meanwhile(bench.cluster.pods[namespace, name])
            await asyncio.sleep(0)
            return found

        return answer

    bench.cluster.pod = delayed(bench.cluster.pod)  # type: ignore[method-assign,assignment]
    bench.cluster.fence = delayed(bench.cluster.fence)  # type: ignore[method-assign,assignment]


@pytest.mark.anyio
@pytest.mark.requirement("B1")
async def test_a_correction_that_comes_while_the_pod_is_read_counts() -> None:
    """The kubelet gave the other GPU; who comes next does not get it too."""

    bench = Bench(Fate.LOST_EXECUTED, Fate.OK)

    def corrected(pod: Pod) -> None:
        other = (Gpu(1, "GPU-a-1", 15360, "T4"),)
        pod.metadata.annotations |= binding_annotations(allocate(request_of(pod), other, "share", 1), other, pod)
        bench.ledger.apply_pod(copy.deepcopy(pod))

    overtaken(bench, corrected)
    for name in ("p", "q"):
        assert await bench.bind(bench.create(name, 15), "a")
    held = [decode_allocation(p.metadata.annotations[ALLOCATION_ANNOTATION]) for p in bench.cluster.pods.values()]
    assert [[share.uuid for share in each.gpus] for each in held] == [["GPU-a-1"], ["GPU-a-0"]]


@pytest.mark.anyio
@pytest.mark.parametrize("fate", [Fate.OK, Fate.LOST_EXECUTED])
async def test_a_list_that_is_older_than_a_binding_frees_nothing(fate: Fate) -> None:
    """A list of a large cluster takes minutes: it does not have a pod that was created and bound meanwhile."""
    bench = Bench(fate, Fate.OK)
    assert await bench.bind(bench.create("p", 15), "a")
    bench.now += CONFIRMATION_S
    await bench.binder.resolve_unconfirmed()
    bench.ledger.replace_pods(())
    assert bench.used() == {"a": 15, "b": 0}
    assert not bench.ledger.overdue(bench.now, CONFIRMATION_S), "it was read a moment ago"
    assert await bench.bind(bench.create("q", 15), "a")
    allocations = [pod.metadata.annotations[ALLOCATION_ANNOTATION] for pod in bench.cluster.pods.values()]
    assert len({decode_allocation(text).gpus[0].uuid for text in allocations}) == 2, "one GPU for each"


@pytest.mark.anyio
async def test_a_pod_that_a_restored_etcd_has_unbound_gets_its_binding_again() -> None:
    """Only a reading of the pod tells that: the list may be older than the Binding."""
    bench = Bench(Fate.OK, Fate.OK)
    pod = bench.create("p")
    assert await bench.bind(pod, "a")
    bench.watch()
    bench.cluster.pods["default", "p"] = copy.deepcopy(pod)
    at_once(Informer(bench.ledger, lambda _: None).listed_pods(Replaced([copy.deepcopy(pod)])))
    assert bench.used() == {"a": 5, "b": 0}, "the list may be older than the Binding"
    assert not await bench.bind(pod, "a")
    await bench.binder.resolve_unconfirmed()
    assert bench.used() == {"a": 0, "b": 0}
    assert await bench.bind(pod, "b")
    assert bench.cluster.pods["default", "p"].spec.node_name == "b"
    assert bench.used() == {"a": 0, "b": 5}
