"""docs/reference/admission-rules.md names every rule, with the very message that its example gets."""

from dataclasses import replace
from pathlib import Path

import pytest

from gputile.core.admission.review import UnreadableReview, message, mutate, unreadable, validate
from gputile.core.refusal import AdmissionRule

from .builders import POLICY, Json, pod, request

_ROOT = Path(__file__).resolve().parents[4]
DOCUMENT = (_ROOT / "docs" / "reference" / "admission-rules.md").read_text(encoding="utf-8")
GPU = {"nvidia.com/gpu": "1"}
MEM = {"aliyun.com/gpu-mem": "7"}
COUNT = {"labels": {"aliyun.com/gpu-count": "2"}}
GANG = {"pod-group.scheduling.sigs.k8s.io/name": "g", "pod-group.scheduling.sigs.k8s.io/min-available": "all"}


def container(**fields: object) -> Json:
    return {"container": fields}


CREATED: dict[AdmissionRule, Json] = {
    AdmissionRule.AMOUNT: pod(MEM, meta=COUNT),
    AdmissionRule.UNIT: pod(MEM, meta={"annotations": {"gputile.io/memory-unit-mib": "64"}}),
    AdmissionRule.SHARE: pod(MEM, meta={"annotations": {"gputile.io/gpu-weight": "heavy"}}),
    AdmissionRule.LEGACY_AFFINITY: pod(GPU, meta={"annotations": {"scheduler.alpha.kubernetes.io/affinity": "{"}}),
    AdmissionRule.GANG: pod(GPU, meta={"labels": GANG}),
    AdmissionRule.FORGED: pod(GPU, meta={"annotations": {"gputile.io/allocation": "{}"}}),
    AdmissionRule.ENVIRONMENT: pod(GPU, **container(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}])),
    AdmissionRule.PRIVILEGED: pod(GPU, **container(securityContext={"privileged": True})),
    AdmissionRule.HOST_NAMESPACE: pod(GPU, hostIPC=True),
    AdmissionRule.HOST_PATH: pod(GPU, volumes=[{"name": "dev", "hostPath": {"path": "/dev"}}]),
    AdmissionRule.MOUNT: pod(GPU, **container(volumeMounts=[{"name": "mine", "mountPath": "/etc/gputile"}])),
    AdmissionRule.DEVICE_ANNOTATION: pod(GPU, meta={"annotations": {"cdi.k8s.io/gpu": "nvidia.com/gpu=all"}}),
    AdmissionRule.NODE_NAME: pod(GPU, nodeName="node-1"),
}


def example(rule: AdmissionRule) -> str:
    """Return the message of the rule's example."""
    if rule is AdmissionRule.COUNT_CHANGED:
        return message(validate(request(pod(GPU, meta=COUNT), pod(GPU)), POLICY).refusals)
    if rule is AdmissionRule.GANG_GATE:
        meta = {"labels": {"scheduling.x-k8s.io/pod-group": "g"}}
        waits = pod(GPU, meta=meta, schedulingGates=[{"name": "gputile.io/gang"}])
        return message(validate(request(pod(GPU, meta=meta), waits), replace(POLICY, gangs=True)).refusals)
    if rule is AdmissionRule.POD:
        with pytest.raises(UnreadableReview) as caught:
            mutate(request({"spec": {"containers": [{"name": 5}]}}), POLICY)
        return message([unreadable(caught.value)])
    return message(mutate(request(CREATED[rule]), replace(POLICY, gangs=True)).refusals)


@pytest.mark.parametrize("rule", list(AdmissionRule))
def test_each_rule_is_in_the_document_with_its_message(rule: AdmissionRule) -> None:
    assert f"### `{rule}`" in DOCUMENT
    assert f"\n{example(rule)}\n" in DOCUMENT


def test_there_is_no_other_rule_in_the_document() -> None:
    headings = [line.strip("# `") for line in DOCUMENT.splitlines() if line.startswith("### `")]
    assert headings == [str(rule) for rule in AdmissionRule]
