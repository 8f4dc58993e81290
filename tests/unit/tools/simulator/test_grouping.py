"""Outcomes are told together where pods of one workload have no place for one reason."""

import pytest

from gputile.api.core import ObjectMeta, OwnerReference, Pod
from gputile.tools.simulator.outcomes import together
from gputile.tools.simulator.simulation import PodOutcome

pytestmark = pytest.mark.requirement("B4")


def outcome(name: str, owner: str = "", reason: str = "full", node: str | None = None) -> PodOutcome:
    owners = (OwnerReference(kind="ReplicaSet", name=owner, uid=owner, controller=True),) if owner else ()
    return PodOutcome(Pod(metadata=ObjectMeta(name=name, namespace="n", owner_references=owners)), node, None, reason)


def test_groups_stand_where_their_first_pod_is() -> None:
    told = together(
        [
            outcome("a", "w"),
            outcome("b", "w", node="x"),
            outcome("c"),
            outcome("d", "w"),
            outcome("e", "v"),
            outcome("f", "w", "small"),
            outcome("g"),
        ]
    )
    assert [(each.outcome.pod.metadata.name, each.others) for each in told] == [
        ("a", ["d"]),
        ("b", []),
        ("c", []),
        ("e", []),
        ("f", []),
        ("g", []),
    ]
