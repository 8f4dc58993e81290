"""A pod that was refused a moment too early is tried again (scheduled within seconds of a pod's deletion)."""

import asyncio
import contextlib
from typing import Any

import msgspec
import pytest

from gputile.api.core import Node, Pod
from gputile.api.well_known import ALLOCATION_ANNOTATION, WAKE_ANNOTATION
from gputile.controlplane.extender.informer import WATCH_LAG_SECONDS, Informer, PodRequeuer
from gputile.core.devices.allocation import Allocation, GpuShare, encode_allocation
from gputile.kube.objects import Applied, Deleted, Replaced
from tests.fakes.apiserver import until
from tests.unit.controlplane.extender.builders import gpu_node, gpu_pod, ledger_of

pytestmark = pytest.mark.requirement("U4")


def bound_pod(name: str) -> Pod:
    pod = gpu_pod(name)
    pod.spec.node_name = "a"
    share = GpuShare("GPU-a-0", 0, 5 * 1024)
    pod.metadata.annotations = {
        ALLOCATION_ANNOTATION: encode_allocation(Allocation((share,), {"main": (share,)}, 1024))
    }
    return pod


def test_only_what_frees_gpus_counts() -> None:
    freed: list[str] = []
    ledger = ledger_of(gpu_node("a"))
    feed = Informer(ledger, freed.append)
    feed.pods(Applied(gpu_pod("waiting")))
    feed.pods(Applied(bound_pod("p")))
    assert freed == []
    ended = bound_pod("p")
    ended.status.phase = "Succeeded"
    feed.pods(Applied(ended))
    assert freed == ["a"]
    feed.pods(Applied(bound_pod("q")))
    feed.pods(Deleted(bound_pod("q")))
    feed.pods(Deleted(gpu_pod("waiting")))
    assert freed == ["a", "a"]


def test_a_changed_node_counts_and_a_touched_one_does_not() -> None:
    freed: list[str] = []
    feed = Informer(ledger_of(gpu_node("a")), freed.append)
    touched: Node = gpu_node("a")
    touched.metadata.annotations = touched.metadata.annotations | {WAKE_ANNOTATION: "1"}
    feed.nodes(Applied(touched))
    assert freed == [], "else the touch would wake the touch"
    feed.nodes(Applied(gpu_node("a", gpus=3)))
    assert freed == ["a"]
    feed.nodes(Replaced([gpu_node("a", gpus=4)]))
    assert freed == ["a", "a"]


class _Patches:
    """Takes the place of a connection: notes what is patched."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []

    async def patch(self, path: str, body: bytes) -> bytes:
        self.seen.append((path, msgspec.json.decode(body)))
        return b"{}"


@pytest.mark.anyio
async def test_a_node_is_touched_only_soon_after_a_refusal() -> None:
    now, patches = [0.0], _Patches()
    wake = PodRequeuer(patches, lambda: now[0], pause=0.0)  # type: ignore[arg-type]
    task = asyncio.create_task(wake.run())
    wake.freed("a")
    await asyncio.sleep(0.01)
    assert patches.seen == []
    wake.refused()
    wake.freed("a")
    await until(lambda: bool(patches.seen))
    assert [path for path, _ in patches.seen] == ["/api/v1/nodes/a"]
    now[0] += WATCH_LAG_SECONDS + 1
    wake.freed("a")
    await asyncio.sleep(0.01)
    assert len(patches.seen) == 1
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
