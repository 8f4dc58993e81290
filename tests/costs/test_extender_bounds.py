"""However many pods come and go, what an extender keeps of them stays as it is (it runs for months)."""

import gc
import random
import tracemalloc
from collections.abc import Iterator
from itertools import combinations
from typing import Any, Literal

import pytest

from gputile.api.affinity import Affinity, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Pod
from gputile.api.webhooks import ExtenderArgs
from gputile.api.well_known import ALLOCATION_ANNOTATION, MODEL_LABEL, POD_GROUP_LABEL
from gputile.controlplane.evictable_pods import EvictablePods
from gputile.controlplane.extender.binder import Binder
from gputile.controlplane.extender.handlers import ExtenderHandlers
from gputile.controlplane.extender.informer import Informer
from gputile.core.ledger.ledger import Ledger
from gputile.core.placement.fit import best_set
from gputile.core.scheduling.placement_engine import PlacementEngine
from gputile.kube.objects import Applied, Deleted
from tests.costs.calls import calls
from tests.fakes.corebuilders import allocation_text, share
from tests.unit.controlplane.extender.builders import gpu_node, gpu_pod
from tests.unit.controlplane.extender.cluster import Fate, ModelCluster

AT_ONCE = 50
# Entries of the largest container of an object, by its class. The largest stated bounds: pods that were learnt from,
# pods that filter has shown, and rows that changed.
LARGEST = {"DemandTracker": 65_536, "ExtenderHandlers": 8_192, "Changes": 8_192}
OTHERS = 4_096


def reachable(root: object) -> Iterator[tuple[str, list[int]]]:
    """Yield each of gputile's own objects below ``root``: its class, and the entries of its containers."""
    known, left = set[int](), [root]
    while left:
        thing = left.pop()
        if id(thing) in known:
            continue
        known.add(id(thing))
        values: list[Any] = list(getattr(thing, "__dict__", {}).values())
        values += [getattr(thing, name) for name in getattr(type(thing), "__slots__", ()) if hasattr(thing, name)]
        containers = [value for value in values if isinstance(value, (dict, list, set, frozenset))]
        for value in containers:
            left += value.values() if isinstance(value, dict) else value
        left += [value for value in values if type(value).__module__.startswith("gputile.")]
        yield type(thing).__name__, [len(value) for value in containers]


def assert_bounded(root: object) -> set[str]:
    """Compare what is kept below ``root`` with the stated bounds, and return the classes that were found."""
    found = set[str]()
    for name, entries in reachable(root):
        found.add(name)
        *others, largest = sorted([0, *entries])
        assert largest <= LARGEST.get(name, OTHERS), name
        assert all(count <= OTHERS for count in others), name
    return found


@pytest.mark.parametrize(("placement", "pods"), [("binpack", 20_000), ("packing", 70_000)])
def test_pods_that_come_and_go_leave_nothing_behind(placement: Literal["binpack", "packing"], pods: int) -> None:
    ledger = Ledger(Configuration(placement=placement))
    for i in range(4):
        ledger.apply_node(gpu_node(f"n{i}", gpus=8, mode="share" if i % 2 else "cgpu"))
    engine, cluster = PlacementEngine(ledger, prices_later=True), ModelCluster(lambda: Fate.OK)
    evictable = EvictablePods(lambda uid: ledger.booking(uid) is not None)
    feed = Informer(ledger, lambda _: None, (evictable,))
    binder = Binder(engine, cluster, lambda: 0.0, lambda: 1)
    verbs = ExtenderHandlers(engine, binder, lambda _: None, lambda: None, evictable=evictable)
    names, there = [f"n{i}" for i in range(4)], list[Pod]()
    for i in range(pods):
        # Every pod is unlike all others: its name, namespace, labels, amounts and CPU.
        pod = gpu_pod(f"p{i}", 1 + i % 15, namespace=f"team-{i}")
        pod.metadata.labels = {"app": str(i), POD_GROUP_LABEL: f"g{i}"}
        pod.spec.containers[0].resources.requests = {"cpu": f"{i}m"}
        if i % 10 == 0:
            verbs.filter(ExtenderArgs(pod=pod, node_names=names))
        pod.spec.node_name = names[i % 4]
        pod.metadata.annotations = {ALLOCATION_ANNOTATION: allocation_text(share(f"GPU-n{i % 4}-{i % 8}", 1))}
        feed.pods(Applied(pod))
        there.append(pod)
        if len(there) > AT_ONCE:
            feed.pods(Deleted(there.pop(0)))
    assert sum(1 for _ in ledger.bookings()) == AT_ONCE
    gc.collect()
    assert LARGEST.keys() - {"DemandTracker"} <= assert_bounded(verbs), "each bound is of something that there is"
    assert_bounded(feed)


MOST_KEPT = 64 << 20  # bytes that a flood of large pods may leave behind in memory


def kept_of(pods: Iterator[Pod], placement: Literal["binpack", "packing"]) -> int:
    """Return the bytes that filter leaves behind of pods which are gone again."""
    ledger = Ledger(Configuration(placement=placement))
    ledger.apply_node(gpu_node("n", gpus=8, mode="cgpu"))
    engine = PlacementEngine(ledger, prices_later=True)
    binder = Binder(engine, ModelCluster(lambda: Fate.OK), lambda: 0.0, lambda: 1)
    verbs = ExtenderHandlers(engine, binder, lambda _: None, lambda: None, evictable=EvictablePods(lambda _: False))
    tracemalloc.start()
    try:
        for pod in pods:
            verbs.filter(ExtenderArgs(pod=pod, node_names=["n"]))
        del pod
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def test_pods_with_long_annotations_leave_little_behind() -> None:
    """Kubernetes takes 256 KiB of them; of so many pods as filter remembers that would be gigabytes."""

    def pods() -> Iterator[Pod]:
        for i in range(600):
            pod = gpu_pod(f"p{i}")
            pod.metadata.annotations = {"mine": str(i % 10) * 250_000}
            yield pod

    assert kept_of(pods(), "binpack") < MOST_KEPT


def test_pods_that_name_many_models_leave_little_behind() -> None:
    """What packing learns from is kept long after the pods have gone."""

    def pods() -> Iterator[Pod]:
        for i in range(600):
            pod = gpu_pod(f"p{i}")
            models = tuple(f"model-{i}-{number}" for number in range(3_000))
            rule = NodeSelectorRequirement(key=MODEL_LABEL, operator="In", values=models)
            required = NodeSelector(node_selector_terms=(NodeSelectorTerm(match_expressions=(rule,)),))
            pod.spec.affinity = Affinity(node_affinity=NodeAffinity(required=required))
            yield pod

    assert kept_of(pods(), "packing") < MOST_KEPT


@pytest.mark.parametrize("size", [4, 6, 8, 10])
def test_the_best_connected_of_16_gpus_are_found_in_bounded_steps(size: int) -> None:
    """A node reports its matrix, and each bind on it waits for the search."""
    rng = random.Random(1)
    links = {pair: float(rng.choice((1, 2, 3))) for pair in combinations(range(16), 2)}
    matrix = tuple(tuple(0.0 if a == b else links[min(a, b), max(a, b)] for b in range(16)) for a in range(16))
    best_set.cache_clear()
    assert calls(lambda: best_set(matrix, tuple(range(16)), size)) < 200_000
