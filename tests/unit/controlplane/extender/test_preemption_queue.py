"""Refused pods wait for a moment, take turns, and are bounded."""

from itertools import takewhile

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputile.controlplane.extender.preemption_queue import (
    DELAY_S,
    MOST_NAMES,
    MOST_PODS,
    PreemptionQueue,
    RefusedPod,
)
from tests.unit.controlplane.extender.builders import gpu_pod

pytestmark = pytest.mark.requirement("B5")


def taken(queue: PreemptionQueue, now: float) -> list[RefusedPod]:
    """Take out all pods that are due."""
    found = (queue.take(now) for _ in range(len(queue) + 1))
    return [each for each in takewhile(lambda each: each is not None, found) if each is not None]


def names(found: list[RefusedPod]) -> list[str]:
    return [each.pod.metadata.name for each in found]


def test_the_most_important_pod_comes_first_and_each_after_a_moment() -> None:
    queue = PreemptionQueue()
    for now, (name, priority) in enumerate((("a", 1), ("b", 2), ("c", 2))):
        queue.refused(gpu_pod(name, priority=priority), ["n"], float(now))
    assert taken(queue, 0.5) == []
    assert names(taken(queue, 2 + DELAY_S)) == ["b", "c", "a"]
    assert len(queue) == 0


def test_of_a_large_pod_little_is_kept() -> None:
    queue, pod = PreemptionQueue(), gpu_pod("p", priority=3)
    pod.metadata.annotations = {"mine": "x" * 250_000}
    queue.refused(pod, ["n"], 0.0)
    (found,) = taken(queue, DELAY_S)
    assert len(msgspec.json.encode(found)) < 1_000
    assert (found.pod.key, found.pod.metadata.uid, found.pod.spec.priority) == (pod.key, pod.metadata.uid, 3)


def test_a_pod_that_is_refused_again_keeps_its_turn_and_one_that_rests_waits() -> None:
    queue, pod = PreemptionQueue(), gpu_pod("p")
    queue.refused(pod, ["n"], 0.0)
    queue.refused(pod, ["m"], 0.9)
    (found,) = taken(queue, DELAY_S)
    assert (found.names, found.nominated_since) == (("m",), 0.0)
    queue.rest(pod.metadata.uid, 20.0)
    queue.refused(pod, ["n"], 5.0)
    queue.later(found, 6.0)
    assert taken(queue, 19.0) == []
    assert len(taken(queue, 20.0)) == 1
    queue.later(found, 30.0)
    assert len(taken(queue, 30.0)) == 1


def test_a_pod_that_is_refused_while_it_is_searched_for_rests_too() -> None:
    queue, pod = PreemptionQueue(), gpu_pod("p")
    queue.refused(pod, ["n"], 0.0)
    assert len(taken(queue, 1.0)) == 1
    queue.refused(pod, ["n"], 1.5)
    queue.rest(pod.metadata.uid, 12.0)
    assert taken(queue, 11.0) == []
    queue.refused(pod, ["n"], 11.0, by_scheduler=True)
    assert len(taken(queue, 12.0)) == 1


def test_pods_and_names_are_bounded_and_all_names_get_their_turn() -> None:
    queue, nodes, seen = PreemptionQueue(), [str(i) for i in range(3 * MOST_NAMES)], set[str]()
    for i in range(MOST_PODS + 10):
        queue.refused(gpu_pod(f"p{i}"), nodes, 0.0)
        queue.rest(f"uid-p{i}", 0.0)
    found = taken(queue, DELAY_S)
    assert len(found) == MOST_PODS
    for each in found:
        assert len(each.names) == MOST_NAMES
        seen.update(each.names)
    assert seen == set(nodes)


def test_of_too_many_pods_those_stay_that_nobody_has_searched_for() -> None:
    """One namespace has more than there is room for. Another one's pod stays, and so does one that is new."""
    queue = PreemptionQueue()
    queue.refused(gpu_pod("other", namespace="small"), ["n"], 0.0)
    for i in range(MOST_PODS - 1):
        queue.refused(gpu_pod(f"p{i}", namespace="large"), ["n"], 1.0)
    first = next(each for each in iter(lambda: queue.take(5.0), None) if each.pod.metadata.namespace == "large")
    queue.rest(first.pod.metadata.uid, 15.0)
    queue.later(first, 35.0)
    for i in range(50):
        queue.refused(gpu_pod(f"more{i}", namespace="large", priority=1), ["n"], 6.0)
    found = names(taken(queue, 40.0))
    assert len(found) <= MOST_PODS
    assert first.pod.metadata.name not in found
    assert {f"more{i}" for i in range(50)} <= {*found}, "the least important ones go"


def test_a_pod_is_not_forgotten_for_those_of_a_larger_namespace() -> None:
    queue = PreemptionQueue()
    queue.refused(gpu_pod("alone", namespace="small"), ["n"], 0.0)
    for i in range(3 * MOST_PODS):
        queue.refused(gpu_pod(f"p{i}", namespace="large", priority=5), ["n"], 1.0)
    assert "alone" in names(taken(queue, 10.0))


SEARCH_S = 2.0


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), min_size=1, max_size=40), st.integers(0, 40))
def test_no_pod_is_kept_from_its_turn_by_others_for_whom_nothing_is_found(
    pods: list[tuple[str, int]], refused_every: int
) -> None:
    """There is no search but in vain, one takes 2 s, and kube-scheduler refuses them all again and again."""
    queue, now, waiting = PreemptionQueue(), 0.0, []
    for number, (namespace, priority) in enumerate(pods):
        waiting.append(gpu_pod(f"p{number}", namespace=namespace, priority=priority))
        queue.refused(waiting[-1], ["n"], now)
    searches: list[RefusedPod] = []
    namespaces = {namespace for namespace, _ in pods}
    for turn in range(4 * len(namespaces) * len(pods)):
        now += SEARCH_S
        found = queue.take(now)
        if refused_every and turn % refused_every == 0:
            for pod in waiting:
                queue.refused(pod, ["n"], now)
        if found is not None:
            searches.append(found)
            queue.rest(found.pod.metadata.uid, now + 10)
            queue.later(found, now + 30)
    assert {*names(searches)} == {pod.metadata.name for pod in waiting}
    assert {each.pod.metadata.namespace for each in searches[: 4 * len(namespaces)]} == namespaces
