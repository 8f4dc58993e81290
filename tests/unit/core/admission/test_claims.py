"""A pod with claims is brought to the extender by an amount of 0, where nodes may give their GPUs by claims."""

from dataclasses import replace
from typing import Any

import pytest

from gputile.core.admission.review import mutate, validate
from tests.unit.core.admission.builders import POLICY, Json, mutated, pod, request

pytestmark = pytest.mark.requirement("B8")
CLAIMS = [{"name": "gpu", "resourceClaimName": "c"}]
OPEN = replace(POLICY, claims=True, scheduler="gputile-scheduler")
STAMP = {"gputile.io/claims": "0"}


def with_claims(limits: Json | None = None, **spec: Any) -> Json:
    """A pod of one container that uses its claim, as the API server sends it: with resources, perhaps empty."""
    body = pod(limits, resourceClaims=CLAIMS, **spec)
    body["spec"]["containers"][0].setdefault("resources", {})["claims"] = [{"name": "gpu"}]
    return body


@pytest.mark.parametrize("limits", [None, {"cpu": "1"}])
def test_a_pod_with_claims_is_stamped_tolerates_the_taint_and_gets_the_scheduler(limits: Json | None) -> None:
    spec = mutated(with_claims(limits), OPEN)["spec"]
    (main,) = spec["containers"]
    assert main["resources"] == {
        "claims": [{"name": "gpu"}],
        "limits": {**(limits or {}), **STAMP},
        "requests": {**(limits or {}), **STAMP},
    }
    assert spec["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    assert spec["schedulerName"] == "gputile-scheduler"


@pytest.mark.parametrize(("body", "policy"), [(with_claims(), POLICY), (pod({"cpu": "1"}), OPEN)])
def test_without_claims_or_nodes_that_serve_them_nothing_is_changed(body: Json, policy: Any) -> None:
    assert mutated(body, policy) == body


def test_a_pod_that_asks_both_ways_is_warned() -> None:
    """Another driver may be asked by the claim, so that it is not refused."""
    verdict = mutate(request(with_claims({"aliyun.com/gpu-mem": "4"})), OPEN)
    assert verdict.refusals == ()
    assert "no node offers GPUs by both" in verdict.warnings[0]


@pytest.mark.parametrize(
    ("mount", "spec", "rule"),
    [("/etc/gputile", {}, "mount"), ("/data", {"hostPID": True}, "host-namespace"), ("/data", {}, None)],
)
def test_the_limits_of_a_claimed_share_are_protected_as_those_of_any(mount: str, spec: Json, rule: str | None) -> None:
    body = with_claims(volumes=[{"name": "v", "emptyDir": {}}], **spec)
    body["spec"]["containers"][0]["volumeMounts"] = [{"name": "v", "mountPath": mount}]
    wanted = [rule] if rule is not None else []
    assert [each.rule for each in mutate(request(body), OPEN).refusals] == wanted
    assert [each.rule for each in validate(request(body), OPEN).refusals] == wanted
    assert mutate(request(body), POLICY).refusals == (), "no claim is for a GPU of gputile's there"


def test_so_they_are_in_a_container_that_is_added_to_a_running_pod() -> None:
    old = with_claims(volumes=[{"name": "v", "emptyDir": {}}])
    new = with_claims(volumes=[{"name": "v", "emptyDir": {}}])
    debug = {"name": "debug", "image": "x", "volumeMounts": [{"name": "v", "mountPath": "/etc/gputile"}]}
    new["spec"]["ephemeralContainers"] = [debug]
    assert [each.rule for each in validate(request(new, old, sub="ephemeralcontainers"), OPEN).refusals] == ["mount"]
