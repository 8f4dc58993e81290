"""Clusters as they should not be: GPUs of all sizes, lies, mixed trust groups, every mode."""

from hypothesis import strategies as st

from gputile.api.core import Node
from gputile.core.devices.claim_request import CLAIM_UNIT_MIB
from gputile.core.devices.request import ContainerRequest, Phase, Request, RequestKind, Shape, effective
from gputile.core.kube_predicates.pod_requests import HostResources
from gputile.core.ledger.booking import Booking
from gputile.core.ledger.ledger import Ledger
from tests.fakes.corebuilders import book, gpu_node, ledger_of, pod, share

NAMESPACES = ("a", "b", "c")
MODES = ("", "default", "cgpu", "core_mem", "share", "mps", "topology", "unheard-of")
A10, A100 = "NVIDIA A10", "NVIDIA A100 80GB PCIe"
models = st.sampled_from(
    [frozenset(), frozenset(), frozenset({"NVIDIA-A10"}), frozenset({"NVIDIA-A100-80GB-PCIe", "x"})]
)
isolated = st.sampled_from([False, False, True])
sizes = st.sampled_from([1, 1000, 1024, 4096, 15109, 15360, 2**24])
PARTS = [(Phase.INIT, 2), (Phase.SIDECAR, 1), (Phase.APP, 1), (Phase.APP, 1), (Phase.APP, 2), (Phase.APP, 3)]
containers = st.lists(st.sampled_from(range(len(PARTS))), max_size=4, unique=True).map(
    lambda chosen: tuple(ContainerRequest(f"c{i}", PARTS[i][0], gpus=PARTS[i][1]) for i in sorted(chosen))
)
hosts = st.sampled_from(
    [HostResources(), HostResources(900, 70_000), HostResources(8000, 100), HostResources(2**30, 2**40)]
)


@st.composite
def nodes(draw: st.DrawFn, name: str) -> Node:
    if draw(st.integers(0, 9)) == 0:  # garbage, no inventory, or GPUs of somebody else's device plugin
        allocatable = draw(st.sampled_from([{}, {"nvidia.com/gpu": "2"}, {"nvidia.com/gpu": "x"}]))
        return gpu_node(
            name, mode=draw(st.sampled_from(MODES)), inventory=draw(st.sampled_from(["", "{"])), allocatable=allocatable
        )
    mib = draw(st.lists(sizes, max_size=5))
    return gpu_node(
        name,
        mode=draw(st.sampled_from(MODES)),
        sizes=mib,
        unhealthy=draw(st.lists(st.integers(0, 4), max_size=2)),
        placement=draw(st.sampled_from(["", "binpack", "spread", "x"])),
        unit_mib=draw(st.sampled_from([0, 0, 128, 1024])),
        replicas=draw(st.sampled_from([0, 0, 2, 3])),
        claims=draw(st.sampled_from([False, False, True])),
        models=draw(st.sampled_from([(), (A10,), (A10, A100)])),
        allocatable=draw(
            st.sampled_from([{}, {"cpu": "0"}, {"cpu": "10", "memory": "64Gi"}, {"cpu": "64", "memory": "0"}])
        ),
    )


@st.composite
def ledgers(draw: st.DrawFn, names: tuple[str, ...] = ("n0", "n1", "n2")) -> Ledger:
    """A ledger with bookings that may claim anything."""
    ledger = ledger_of(*(draw(nodes(name)) for name in names))
    for i in range(draw(st.integers(0, 8))):
        name, uid, namespace = draw(st.sampled_from(names)), f"p{i}", draw(st.sampled_from(NAMESPACES))
        if draw(st.integers(0, 19)) == 0:
            ledger.assume(Booking(uid, namespace, uid, name, namespace, None, assumed_at=0.0))
            continue
        held = [
            share(
                f"GPU-{name}-{index}",
                draw(st.sampled_from([0, 1, 512, 1024, 4096, 15360, 2**24])),
                draw(st.sampled_from([0, 5, 60, 100])),
            )
            for index in draw(st.sets(st.integers(0, 5), min_size=1, max_size=3))
        ]
        book(ledger, uid, name, *held, namespace=namespace, whole=draw(st.booleans()))
    for i in range(draw(st.integers(0, 2))):
        asks = draw(st.sampled_from([{"cpu": "3", "memory": "9Gi"}, {"cpu": "70"}, {"memory": "2Ti"}]))
        ledger.apply_pod(pod(f"plain{i}", node=draw(st.sampled_from(names)), asks=asks))
    return ledger


@st.composite
def requests(draw: st.DrawFn) -> Request:
    kind, gpus = (
        draw(st.sampled_from([RequestKind.SHARED, RequestKind.SHARED, RequestKind.WHOLE, RequestKind.TOPOLOGY])),
        draw(st.integers(1, 4)),
    )
    if draw(st.integers(0, 3)) == 0:
        mib, percent = (draw(st.sampled_from([1, 1000, 4096, 15360])), draw(st.sampled_from([0, 5, 40, 100])))
        shared = Shape(RequestKind.SHARED, gpus, mib, percent, unit_mib=CLAIM_UNIT_MIB, by_claims=True)
        whole = Shape(RequestKind.WHOLE, gpus, by_claims=True)
        return Request(shared if kind is RequestKind.SHARED else whole, CLAIM_UNIT_MIB, (), draw(hosts))
    if kind is not RequestKind.SHARED:
        group = draw(st.sampled_from([*NAMESPACES, "new"])) if kind is RequestKind.WHOLE else ""
        parts = draw(containers) if kind is RequestKind.WHOLE else ()
        gpus = effective(parts, lambda part: part.gpus) or gpus
        shape = Shape(kind, gpus, trust_group=group, containers=parts, models=draw(models), isolated=draw(isolated))
        return Request(shape, 1024, parts, draw(hosts))
    unit = draw(st.sampled_from([128, 1024, 1024]))
    mib = unit * draw(st.sampled_from([1, 2, 7, 14, 15, 120]))
    percent = draw(st.sampled_from([0, 0, 5, 40, 100, 105]))
    group = draw(st.sampled_from([*NAMESPACES, "new"]))
    shape = Shape(kind, gpus, mib, percent, group, unit, models=draw(models), isolated=draw(isolated))
    return Request(shape, unit, (), draw(hosts))
