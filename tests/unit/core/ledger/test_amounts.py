"""Amounts that no machine has, in what anybody may write: none of them stops the ledger, or counts as another."""

import json
import warnings
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputile.api.config.v1alpha1 import AdmissionConfiguration, Configuration
from gputile.api.core import Node, Pod
from gputile.api.well_known import (
    ALLOCATION_ANNOTATION,
    GPU_CORE,
    GPU_COUNT_LABEL,
    GPU_MEMORY,
    INVENTORY_ANNOTATION,
    MEMORY_UNIT_ANNOTATION,
    MODE_LABEL,
    MODES,
    PLACEMENT_LABEL,
    PLACEMENTS,
    RESERVATION_ANNOTATION,
    TOPOLOGY_GPU,
    WHOLE_GPU,
)
from gputile.controlplane.extender.informer import Informer
from gputile.core.devices.request import RequestError, parse_request
from gputile.core.kube_predicates.pod_requests import MOST_CPU, MOST_HOST_MIB
from gputile.core.ledger.booking import Booking
from gputile.core.ledger.ledger import Ledger
from gputile.core.placement.prices import prices
from gputile.core.scheduling.placement_engine import Decision, PlacementEngine
from gputile.kube.objects import Applied, Deleted, ObjectDecoder, Replaced, WatchEvent
from tests.fakes.corebuilders import allocation_text, gpu_node, pod, request_of, share
from tests.fakes.coroutines import at_once
from tests.stateful.ledgercheck import image

GOOD = gpu_node("good", mode="core_mem", sizes=[8192] * 2, allocatable={"cpu": "8", "pods": "110"})
NODES, PODS = ObjectDecoder(Node), ObjectDecoder(Pod)
EDGES = [2**31 - 1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**30]

numbers = st.one_of(st.integers(-2, 2**20), st.sampled_from(EDGES), st.integers(-(2**70), 2**70))
quantities = st.one_of(
    st.sampled_from(["9E", "8Ei", "1e40", "9223372036854775", "9223372036854776", "9223372036854775807", "1n", "-9E"]),
    numbers,
    numbers.map(str),
    st.floats(allow_nan=False, allow_infinity=False),
    st.from_regex(r"-?[0-9]{1,20}(\.[0-9]{1,3})?(m|k|M|E|Ki|Ei|e[0-9]{1,2})?", fullmatch=True),
    st.text(max_size=4),
)
GPUS = (GPU_MEMORY, GPU_CORE, WHOLE_GPU, TOPOLOGY_GPU)
resources = st.dictionaries(st.sampled_from(["cpu", "memory", "pods", "x.io/y", *GPUS]), quantities, max_size=4)
# Amounts of a pod that parses, so that what it claims is added to what it asks for.
asked = st.fixed_dictionaries(
    {GPU_MEMORY: st.integers(1, 2**14)},
    optional={GPU_CORE: st.integers(1, 2**62).map(lambda n: n * 5 % 2**63 // 5 * 5), "cpu": quantities},
)
uuids = st.sampled_from(["GPU-good-0", "GPU-good-1", "GPU-bad-0"])
shares = st.fixed_dictionaries(
    {"uuid": uuids, "index": st.integers(0, 3) | numbers, "mib": st.sampled_from([0, 1024, 2**24]) | numbers},
    optional={"percent": st.integers(0, 100) | numbers},
)
allocations = st.fixed_dictionaries(
    {
        "version": st.just(1) | numbers,
        "cards": st.lists(shares, max_size=3),
        "containers": st.just({}) | st.dictionaries(st.just("c"), st.lists(shares, max_size=2)),
        "unit_mib": st.just(1024) | numbers,
    },
    optional={"whole": st.booleans(), "assumed_ns": numbers, "mode": st.sampled_from(MODES)},
)
holds = st.fixed_dictionaries(
    {
        "version": st.just(1),
        "plan": st.just("p"),
        "size": st.just(1) | numbers,
        "pods": st.just(1) | numbers,
        "node": st.sampled_from(["bad-0", "good"]),
        "expires_ns": numbers,
        "allocation": allocations,
    }
)
inventories = st.fixed_dictionaries(
    {
        "version": st.just(1) | numbers,
        "cards": st.lists(
            st.fixed_dictionaries(
                {
                    "index": st.integers(0, 3) | numbers,
                    "uuid": st.sampled_from(["GPU-bad-0", "GPU-bad-1", "GPU-bad-2"]),
                    "mib": st.sampled_from([1, 8192, 2**24]) | numbers,
                },
                optional={"numa": numbers},
            ),
            max_size=3,
        ),
    },
    optional={"unit_mib": st.sampled_from([1, 1024]) | numbers, "mode": st.sampled_from(MODES)},
)


def text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


@st.composite
def bad_nodes(draw: st.DrawFn) -> list[dict[str, Any]]:
    return [
        {
            "metadata": {
                "name": f"bad-{i}",
                "labels": {
                    MODE_LABEL: draw(st.sampled_from(MODES)),
                    PLACEMENT_LABEL: draw(st.sampled_from(PLACEMENTS)),
                },
                "annotations": {INVENTORY_ANNOTATION: text(draw(inventories))},
            },
            "status": {"allocatable": draw(resources), "capacity": draw(resources)},
        }
        for i in range(draw(st.integers(1, 3)))
    ]


@st.composite
def pods_on(draw: st.DrawFn, *names: str) -> list[dict[str, Any]]:
    made = []
    for i in range(draw(st.integers(1, 4))):
        annotations = {
            name: text(draw(values))
            for name, values in (
                (ALLOCATION_ANNOTATION, allocations),
                (RESERVATION_ANNOTATION, holds),
                (MEMORY_UNIT_ANNOTATION, numbers),
            )
            if draw(st.booleans())
        }
        labels = {GPU_COUNT_LABEL: str(draw(numbers))} if draw(st.booleans()) else {}
        limits, requests = draw(st.one_of(st.tuples(asked, st.just({})), st.tuples(resources, resources)))
        container = {"name": "c", "resources": {"limits": limits, "requests": requests}}
        uid = f"{names[0]}-{i}"
        made.append(
            {
                "metadata": {"name": uid, "namespace": "a", "uid": uid, "labels": labels, "annotations": annotations},
                "spec": {
                    "nodeName": draw(st.sampled_from(names)),
                    "containers": [container] * draw(st.integers(1, 3)),
                    "priority": draw(numbers),
                },
            }
        )
    return made


def listed(decoder: ObjectDecoder[Any], objects: list[dict[str, Any]]) -> Replaced[Any]:
    return decoder.page(json.dumps({"metadata": {}, "items": objects}).encode())[1]


def changed(decoder: ObjectDecoder[Any], kind: str, thing: dict[str, Any]) -> WatchEvent[Any]:
    line = decoder.line(json.dumps({"type": kind, "object": thing}).encode(), "/")
    assert line.event is not None
    return line.event


def served(ledger: Ledger) -> tuple[Any, ...]:
    """Return what a pod that asks as usual gets of the good node, and how the node's row looks."""
    engine, request = PlacementEngine(ledger), request_of(pod("usual", mem=2, core=20))
    row = {
        name: array[ledger.row_of["good"]][:2].tolist() if array.ndim == 2 else array[ledger.row_of["good"]]
        for name, array in vars(ledger.node_arrays).items()
        if name != "group"
    }
    feasible = engine.filter(request, ["good"]).feasible
    return feasible, isinstance(engine.decide(request, "good", 1), Decision), row


def everything_is_counted(ledger: Ledger) -> None:
    arrays = ledger.node_arrays
    assert (arrays.used >= 0).all()
    assert (arrays.percent >= 0).all()
    assert (arrays.cpu <= MOST_CPU).all()
    assert (arrays.cpu > -16 * MOST_CPU).all()
    assert (arrays.host_mib <= MOST_HOST_MIB).all()
    assert (arrays.host_mib > -16 * MOST_HOST_MIB).all()


def ask_everything(ledger: Ledger, pods: list[Pod]) -> None:
    """Ask what a scheduler asks, for each pod that may ask: filter, rank, decide and, where they count, prices."""
    engine, names = PlacementEngine(ledger), [*ledger.row_of, "unknown"]
    for asking in pods:
        try:
            request = parse_request(asking, 1024)
        except RequestError:
            continue
        if engine.demand is not None:
            engine.demand.observe(asking, request)
        if request is None:
            continue
        engine.rank(request, engine.filter(request, names).feasible)
        engine.rank(request, names)
        for name in names:
            engine.decide(request, name, 1)
    if engine.demand is not None:
        engine.reprice(prices(engine.demand.demand()))
        request = request_of(pod("usual", mem=2, core=20))
        engine.rank(request, engine.filter(request, names).feasible)


@pytest.mark.requirement("B1")
@pytest.mark.parametrize("placement", PLACEMENTS)
@given(nodes=bad_nodes(), elsewhere=pods_on("bad-0", "bad-1", ""), here=pods_on("good", "bad-0"))
def test_no_amount_stops_the_ledger_or_changes_another_node(
    placement: Any, nodes: list[dict[str, Any]], elsewhere: list[dict[str, Any]], here: list[dict[str, Any]]
) -> None:
    """Nodes and pods that anybody may write are taken in, and the others are served as before."""
    configuration = Configuration(placement=placement, admission=AdmissionConfiguration(gangs=True))
    good = msgspec.to_builtins(GOOD)
    with warnings.catch_warnings(), np.errstate(all="raise", under="ignore"):
        warnings.simplefilter("error")
        alone, ledger = Ledger(configuration), Ledger(configuration)
        at_once(Informer(alone, lambda _: None).listed_nodes(listed(NODES, [good])))
        feed = Informer(ledger, lambda _: None)
        at_once(feed.listed_nodes(listed(NODES, [*nodes, good])))
        assert served(ledger) == served(alone)
        before, cpu = image(ledger), ledger.node_arrays.cpu.tolist()
        at_once(feed.listed_pods(listed(PODS, elsewhere)))
        for node in nodes:
            feed.nodes(changed(NODES, "MODIFIED", node))
        if not any(booking.node == "good" for booking in ledger.bookings()):  # a hold may keep GPUs there
            assert served(ledger) == served(alone)
        everything_is_counted(ledger)
        for each in here:
            feed.pods(changed(PODS, "ADDED", each))
        everything_is_counted(ledger)
        events = [changed(PODS, "MODIFIED", each) for each in (*elsewhere, *here)]
        ask_everything(ledger, [event.object for event in events if isinstance(event, Applied)])
        for each in (*elsewhere, *here):
            deleted = changed(PODS, "DELETED", each)
            assert isinstance(deleted, Deleted)
            feed.pods(deleted)
        assert (image(ledger), ledger.node_arrays.cpu.tolist()) == (before, cpu)


def test_a_node_whose_pods_all_use_all_gpus_is_read_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """110 pods with 16 GPUs each were compared with each other, GPU by GPU, for a fifth of a second."""
    there, ledger, compared = gpu_node("n", mode="share", sizes=[81920] * 16), Ledger(Configuration()), []
    ledger.apply_node(there)
    text = allocation_text(*(share(f"GPU-n-{gpu}", 1024) for gpu in range(16)))
    for i in range(20):
        ledger.apply_pod(pod(f"p{i}", mem=16, node="n", annotations={ALLOCATION_ANNOTATION: text}))
    groups = ledger.node_arrays.group.copy()
    monkeypatch.setattr(Booking, "on_gpu", lambda *_: compared.append(1))
    labels = there.metadata.labels | {PLACEMENT_LABEL: "spread"}
    meta = msgspec.structs.replace(there.metadata, labels=labels)
    ledger.apply_node(msgspec.structs.replace(there, metadata=meta))
    assert compared == []
    assert (ledger.node_arrays.group == groups).all()
