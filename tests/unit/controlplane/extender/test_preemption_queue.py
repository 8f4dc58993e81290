"""Refused pods wait for a moment, come by priority, and are bounded."""

import pytest

from gputile.controlplane.extender.preemption_queue import DELAY_S, MOST_NAMES, MOST_PODS, PreemptionQueue
from tests.unit.controlplane.extender.builders import gpu_pod

pytestmark = pytest.mark.requirement("B5")


def test_the_most_important_pod_comes_first_and_each_after_a_moment() -> None:
    queue = PreemptionQueue()
    for now, (name, priority) in enumerate((("a", 1), ("b", 2), ("c", 2))):
        queue.refused(gpu_pod(name, priority=priority), ["n"], float(now))
    assert queue.due(0.5) == []
    assert [each.pod.metadata.name for each in queue.due(2 + DELAY_S)] == ["b", "c", "a"]
    assert len(queue) == 0


def test_a_pod_that_is_refused_again_keeps_its_turn_and_one_that_rests_waits() -> None:
    queue, pod = PreemptionQueue(), gpu_pod("p")
    queue.refused(pod, ["n"], 0.0)
    queue.refused(pod, ["m"], 0.9)
    (found,) = queue.due(DELAY_S)
    assert (found.names, found.since, found.nominated_since) == (("m",), 0.0, 0.0)
    queue.rest(pod.metadata.uid, 20.0)
    queue.refused(pod, ["n"], 5.0)
    queue.later(found, 6.0)
    assert queue.due(19.0) == []
    assert len(queue.due(20.0)) == 1
    queue.later(found, 30.0)
    assert len(queue.due(30.0)) == 1


def test_pods_and_names_are_bounded_and_all_names_get_their_turn() -> None:
    queue, names, seen = PreemptionQueue(), [str(i) for i in range(3 * MOST_NAMES)], set[str]()
    for i in range(MOST_PODS + 10):
        queue.refused(gpu_pod(f"p{i}"), names, 0.0)
        queue.rest(f"uid-p{i}", 0.0)
    found = queue.due(DELAY_S)
    assert len(found) == MOST_PODS
    assert found[0].pod.metadata.name == "p10"
    for each in found:
        assert len(each.names) == MOST_NAMES
        seen.update(each.names)
    assert seen == set(names)
