"""Two schedulers with an extender each; the active pair is killed while it binds (one replica acts at a time)."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Node, Pod
from gputile.api.well_known import GPU_MEMORY
from gputile.core.ledger.events import NodesReplaced, PodsReplaced
from gputile.core.ledger.ledger import Ledger
from tests.e2e.extender import assert_nothing_over_allocated, bound, pod_body, pods_in, write_cluster
from tests.localcluster.client import text_at
from tests.localcluster.controlplane import ControlPlane
from tests.localcluster.gputile import MANAGED, described_nodes, start_extender

pytestmark = pytest.mark.requirement("B1")

PODS = 500
# 768 units for 500 pods that ask 750: room for all, and hardly a unit to spare.
CLUSTER = """
nodes:
- {name: 'n', count: 6, mode: cgpu, gpus: {count: 8, model: Tesla T4, memory: 16GiB}, taints: []}
"""


class _List(msgspec.Struct):
    items: list[msgspec.Raw]


def test_the_active_extender_is_killed_in_the_middle_of_500_pods(
    control_plane: ControlPlane, namespace: str, no_nodes: None, tmp_path: Path
) -> None:
    """Nothing lost, nothing doubled, no GPU over-allocated, and the ledger equal to the annotations."""
    control_plane.nodes.create_nodes(described_nodes(write_cluster(tmp_path, CLUSTER)))
    first, first_url = start_extender(control_plane, "first", lease_seconds=3)
    second, second_url = start_extender(control_plane, "second", lease_seconds=3)
    options = {"bind": True, "preempt": True, "managed_resources": MANAGED, "lease_seconds": 24}
    with first, second:
        leader = control_plane.start_scheduler(first_url, name="scheduler-first", **options)  # type: ignore[arg-type]
        standby = control_plane.start_scheduler(second_url, name="scheduler-second", **options)  # type: ignore[arg-type]
        with leader, standby:
            with ThreadPoolExecutor(1) as beside:  # pods go on coming while the active ones die
                creating = beside.submit(_create, control_plane, namespace)
                control_plane.wait(lambda: _count(control_plane, namespace) > PODS // 10, "a tenth to be bound")
                first.kill()
                leader.kill()
                at_the_kill = _count(control_plane, namespace)
                creating.result()
            control_plane.wait(lambda: _count(control_plane, namespace) == PODS, "all pods to be bound", 240.0, 0.5)
            assert at_the_kill < PODS, "the kill came too late to prove anything"
            assert assert_nothing_over_allocated(control_plane) == PODS
            _ledgers_agree(control_plane, second_url)


def _create(plane: ControlPlane, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods"
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: plane.api.post(path, pod_body(f"p{i:03}", {GPU_MEMORY: 1 + i % 2})), range(PODS)))


def _count(plane: ControlPlane, namespace: str) -> int:
    return len(bound(pods_in(plane, namespace)))


def _ledgers_agree(plane: ControlPlane, url: str) -> None:
    """Compare what the surviving extender holds, by its metrics, with a ledger rebuilt from the API objects."""
    ledger = Ledger(Configuration())
    ledger.apply(NodesReplaced([_typed(Node, raw) for raw in _items(plane, "/api/v1/nodes")]))
    ledger.apply(PodsReplaced([_typed(Pod, raw) for raw in _items(plane, "/api/v1/pods")]))
    assert not (ledger.node_arrays.used > ledger.node_arrays.total).any()
    wanted = {"gputile_ledger_bookings": PODS, "gputile_ledger_unconfirmed": 0, "gputile_ledger_overallocated_gpus": 0}
    assert sum(1 for _ in ledger.bookings()) == PODS
    deadline = time.monotonic() + 60
    while True:
        lines = text_at(f"{url}/metrics").splitlines()
        found = {name: float(line.split()[1]) for line in lines for name in wanted if line.startswith(f"{name} ")}
        if found == wanted:
            return
        assert time.monotonic() < deadline, f"the extender's ledger says {found}"
        time.sleep(0.2)


def _items(plane: ControlPlane, path: str) -> list[msgspec.Raw]:
    return msgspec.json.decode(msgspec.json.encode(plane.api.get(path)), type=_List).items


def _typed(kind: type, raw: msgspec.Raw):  # type: ignore[no-untyped-def]
    return msgspec.json.decode(raw, type=kind)
