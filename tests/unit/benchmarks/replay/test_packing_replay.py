"""The packing policy in a replay: what it knows, what it gets, and that it keeps its head when the mix changes."""

from hashlib import sha256

import numpy as np
import pytest
from benchmarks.replay.cluster import ReplayCluster
from benchmarks.replay.engine import LivePlacer, replay, steps
from benchmarks.replay.study import make_placer
from benchmarks.replay.trace import Arrivals, Nodes, PodShape, Workload

from tests.unit.benchmarks.replay.traces import share, stream, uniform, unlike

pytestmark = pytest.mark.requirement("B3")


CUT = (share(810), share(190), share(1000, cpu=8000), share(470), share(320))
OTHER = (share(650), share(350), share(530), share(470), share(1000, cpu=8000))
T4 = frozenset({"T4"})
BUSY = (share(1000, cpu=4000), share(500, cpu=12000), share(0, cpu=16000, gpus=0), share(1000, cpu=20000))


def used(nodes: Nodes, workload: Workload, arrivals: Arrivals, policy: str) -> float:
    found = replay(make_placer(policy, nodes, workload, arrivals, 1), workload, arrivals)
    return float(100 * found.used[-1] / found.total)


def test_it_knows_nothing_of_pods_to_come() -> None:
    """Whatever follows, the pods so far went where they would have gone anyway."""
    nodes = uniform(20, 4, 48000)
    short, orders = stream(nodes, (CUT, 0.6))
    longer, _ = stream(nodes, (CUT, 0.6), (OTHER, 0.6))
    count = len(short.shape)
    assert longer.shape[:count].tolist() == short.shape.tolist()
    every = Arrivals(np.arange(len(longer.shape)), orders.rank)
    one = list(steps(make_placer("packing", nodes, short, orders, 1), short, orders))
    other = list(steps(make_placer("packing", nodes, longer, every, 1), longer, every))
    assert other[:count] == one


@pytest.mark.parametrize("shapes", [CUT, OTHER, BUSY])
def test_it_gets_as_much_on_as_the_better_of_fgd_and_bestfit(shapes: tuple[PodShape, ...]) -> None:
    nodes = uniform(60, 4, 48000)
    workload, arrivals = stream(nodes, (shapes, 1.3))
    packing = used(nodes, workload, arrivals, "packing")
    peers = used(nodes, workload, arrivals, "bestfit"), used(nodes, workload, arrivals, "fgd")
    assert packing >= max(peers) - 0.2


def test_pods_without_gpus_that_kube_scheduler_spreads_leave_gpus_without_cpu() -> None:
    nodes = uniform(60, 4, 48000)
    workload, arrivals = stream(nodes, (BUSY, 1.3))
    found = []
    for ranked in (True, False):
        placer = make_placer("packing", nodes, workload, arrivals, 1, ranked=ranked)
        found.append(replay(placer, workload, arrivals).used[-1])
    assert found[0] > found[1]


@pytest.mark.parametrize(("claims", "free"), [(False, [400, 100]), (True, [200, 300])])
def test_on_nodes_of_claims_pods_get_the_first_gpu_that_fits(claims: bool, free: list[int]) -> None:
    shapes = (share(600), share(700), share(200))
    cluster = ReplayCluster(uniform(1, 2, 48000), shapes, np.arange(1), claims=claims)
    for index in range(3):
        assert LivePlacer(cluster).place(f"p{index}", index) == 0
    assert cluster.free()[0, :2].tolist() == free


MIX = (
    share(810),
    share(190),
    share(470, cpu=8000),
    share(320),
    share(1000, cpu=8000),
    share(1000, cpu=11000, models=T4),
    share(1000, cpu=12000, gpus=4),
    share(1000, cpu=6000, gpus=2),
    share(0, cpu=8000, gpus=0),
    PodShape(2000, 300_000, 1, 500, frozenset()),
)
PLENTY_WITHOUT_GPUS = (
    *(share(0, cpu=cpu, gpus=0) for cpu in (700, 900, 2300, 5300, 5300, 9100, 14100)),
    *(share(milli, cpu=cpu) for milli in (130, 260, 330, 520, 610) for cpu in (900, 7000)),
    share(1000, cpu=6000),
    share(1000, cpu=13000),
    share(1000, cpu=26000, gpus=2),
)
"""Nearly as much CPU for each GPU as the nodes have, much of it for pods without GPUs, and those of unlike sizes."""


def decided(policy: str, mix: tuple[PodShape, ...]) -> tuple[str, float]:
    """Return the digest of where each pod went, its GPUs included, and the part of the GPUs that is allocated."""
    nodes = unlike(60)
    workload, arrivals = stream(nodes, (mix, 1.3), seed=7)
    placer = make_placer(policy, nodes, workload, arrivals, 7)
    rows = list(steps(placer, workload, arrivals))
    held = [
        (booking.uid, booking.node, [share.index for share in booking.gpus])
        for booking in sorted(placer.cluster.ledger.bookings(), key=lambda booking: int(booking.uid))
    ]
    used = _used(rows, workload, arrivals)
    return sha256(repr((rows, held)).encode()).hexdigest()[:16], round(100 * used / nodes.milli, 2)


def _used(rows: list[int], workload: Workload, arrivals: Arrivals) -> int:
    demand = np.array([shape.demand for shape in workload.shapes])[workload.shape[arrivals.pods]]
    return int(demand[np.array(rows) >= 0].sum())


@pytest.mark.parametrize(
    ("policy", "mix", "digest", "allocated"),
    [
        ("binpack", MIX, "844295c88f34d9d6", 98.02),
        ("spread", MIX, "e3a16ef32b2bcb5d", 75.58),
        ("packing", MIX, "f7f7a2c5c286a5a3", 99.14),
        ("binpack", PLENTY_WITHOUT_GPUS, "4260ecc2d57572f8", 95.08),
        ("spread", PLENTY_WITHOUT_GPUS, "f3e1c058c6148ac9", 82.66),
        ("packing", PLENTY_WITHOUT_GPUS, "6de2b3134a810d6e", 96.73),
    ],
    ids=lambda each: {MIX: "mix", PLENTY_WITHOUT_GPUS: "plenty-without-gpus"}.get(each, each),
)
def test_each_pod_goes_where_it_went(policy: str, mix: tuple[PodShape, ...], digest: str, allocated: float) -> None:
    """The digest of all decisions tells that none has changed, the figure what they are worth.

    After a change of decisions on purpose the whole trace is measured anew (docs/guides/replay.md).
    """
    assert decided(policy, mix) == (digest, allocated)
