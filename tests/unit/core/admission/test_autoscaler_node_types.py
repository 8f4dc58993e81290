"""Pods are kept off the node types that could never take them, by rules that every autoscaler understands."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from gputile.api.core import Pod
from gputile.core.admission.review import mutate
from gputile.core.devices.node_type import node_types_of
from gputile.core.kube_predicates.node_fit import matches_node
from tests.unit.core.admission.builders import POLICY, Json, mutated, pod, request
from tests.unit.core.devices.test_node_type import configured, described

pytestmark = pytest.mark.requirement("U8")

SMALL, LARGE = described(memory="15GiB", label="pool=small"), described(memory="40GiB", label="pool=large")
POLICY_WITH_TYPES = replace(POLICY, unit_mib=1024, node_types=node_types_of(configured(SMALL, LARGE)))
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
NOT_SMALL = {"key": "pool", "operator": "NotIn", "values": ["small"]}


def asks(units: int, **spec: Any) -> Json:
    return pod({"aliyun.com/gpu-mem": units}, **spec)


def affinity(*terms: Json) -> Json:
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}}


def terms(stored: Json) -> list[Json]:
    found: list[Json] = stored["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    return found


@pytest.mark.parametrize(
    "before",
    [
        None,
        {},
        {"podAffinity": {}},
        {"nodeAffinity": {}},
        {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
    ],
)
def test_a_pod_too_large_for_a_type_is_kept_off_it(before: Json | None) -> None:
    stored = mutated(asks(20, **({} if before is None else {"affinity": before})), POLICY_WITH_TYPES)
    assert terms(stored) == [{"matchExpressions": [NOT_SMALL]}]
    assert stored["spec"]["affinity"].keys() >= (before or {}).keys()


def test_each_of_several_terms_gets_the_rule_and_an_empty_one_stays_empty() -> None:
    """A term without requirements holds for no node; one more rule would make it hold for many."""
    zone = {"key": "zone", "operator": "In", "values": ["a"]}
    name = {"key": "metadata.name", "operator": "In", "values": ["n"]}
    body = asks(20, affinity=affinity({"matchExpressions": [zone]}, {"matchFields": [name]}, {}))
    assert terms(mutated(body, POLICY_WITH_TYPES)) == [
        {"matchExpressions": [zone, NOT_SMALL]},
        {"matchFields": [name], "matchExpressions": [NOT_SMALL]},
        {},
    ]


def test_a_pod_of_very_many_terms_is_stored_as_it_is() -> None:
    """Each term would get a rule for each type, and others wait for their pods meanwhile."""
    types = node_types_of(configured(*(described(label=f"pool=t{i}") for i in range(20))))
    many = ({"matchExpressions": [{"key": f"k{i}", "operator": "Exists"}]} for i in range(512))
    body = asks(20, affinity=affinity(*many))
    verdict = mutate(request(body), replace(POLICY_WITH_TYPES, node_types=types))
    assert not any("affinity" in operation.path for operation in verdict.operations)
    assert any("512 terms" in warning for warning in verdict.warnings)


def test_an_affinity_from_an_old_annotation_is_completed_too() -> None:
    text = (
        '{"nodeAffinity": {"%s": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}]}}}'
    )
    meta = {"annotations": {"scheduler.alpha.kubernetes.io/affinity": text % REQUIRED}}
    stored = mutated(pod({"aliyun.com/gpu-mem": 20}, meta=meta), POLICY_WITH_TYPES)
    assert terms(stored) == [{"matchExpressions": [{"key": "a", "operator": "Exists"}, NOT_SMALL]}]


def test_the_rule_keeps_the_pod_off_such_nodes_and_on_all_others() -> None:
    stored = msgspec.convert(mutated(asks(20), POLICY_WITH_TYPES), Pod)
    small, large = POLICY_WITH_TYPES.node_types
    assert not matches_node(stored.spec, small.node("n"))
    assert matches_node(stored.spec, large.node("n"))


@pytest.mark.parametrize("body", [asks(15), pod({"cpu": 1}), pod({"nvidia.com/mig-1g.10gb": 1})])
def test_other_pods_stay_as_they_are(body: Json) -> None:
    assert "affinity" not in mutated(body, POLICY_WITH_TYPES)["spec"]


def test_who_creates_a_pod_that_no_type_takes_is_warned() -> None:
    verdict = mutate(request(asks(41)), POLICY_WITH_TYPES)
    (warning,) = verdict.warnings
    assert "pool=small: its GPUs have 15 units" in warning
    assert "pool=large: its GPUs have 40 units" in warning


def test_a_mode_that_does_not_serve_the_pod_is_avoided() -> None:
    types = node_types_of(configured(described("core_mem")))
    stored = mutated(asks(1), replace(POLICY_WITH_TYPES, node_types=types))
    assert terms(stored)[0]["matchExpressions"][0]["values"] == ["gpu"]


def test_the_clusters_isolation_keeps_pods_off_types_as_their_own_does() -> None:
    types = node_types_of(configured(described(mode="share", label="pool=small")))
    policy = replace(POLICY, unit_mib=1024, node_types=types, isolation="memory")
    assert terms(mutated(asks(4), policy)) == [{"matchExpressions": [NOT_SMALL]}]


def test_a_type_that_says_no_model_may_have_any() -> None:
    body = pod({"aliyun.com/gpu-mem": 4}, meta={"labels": {"gputile.io/gpu-model": "NVIDIA-A100"}})
    assert "affinity" not in mutated(body, POLICY_WITH_TYPES)["spec"]
