"""Whatever a pod says: no crash, and what is stored passes a second time unchanged."""

import copy
import json
import re
from dataclasses import replace
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from gputile.api.core import Pod
from gputile.api.well_known import GPU_RESOURCES
from gputile.core.admission.legacy_forms import apply_patch, encode_patch
from gputile.core.admission.review import message, mutate, validate
from gputile.core.devices.request import parse_request
from tests.conftest import examples

from .builders import POLICY, Json, request

GANGS = replace(POLICY, gangs=True)
TEXT = st.text(max_size=12)
NAMES = st.sampled_from([*GPU_RESOURCES, "cpu", "example.com/x"])
AMOUNTS = st.one_of(st.sampled_from(["1", "2", "5", "7", "0", "0.5", "500m", "-1", "x", "1k", 1, 4, 10]), TEXT)
AFFINITY = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [
                {
                    "matchExpressions": [
                        {"key": "alpha.kubernetes.io/nvidia-gpu-name", "operator": "In", "values": ["Tesla K80"]}
                    ]
                }
            ]
        }
    }
}
ANNOTATIONS = st.dictionaries(
    st.sampled_from(
        [
            "scheduler.alpha.kubernetes.io/affinity",
            "gputile.io/memory-unit-mib",
            "gputile.io/allocation",
            "cdi.k8s.io/a",
            "other/one",
        ]
    ),
    st.one_of(st.sampled_from([json.dumps(AFFINITY), "128", "{", "{}"]), TEXT),
    max_size=3,
)
LABELS = st.dictionaries(
    st.sampled_from(
        [
            "aliyun.com/gpu-count",
            "pod-group.scheduling.sigs.k8s.io/name",
            "pod-group.scheduling.sigs.k8s.io/min-available",
            "scheduling.x-k8s.io/pod-group",
        ]
    ),
    st.one_of(st.sampled_from(["1", "2", "g"]), TEXT),
    max_size=3,
)
TOLERATIONS = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "key": st.sampled_from(["nvidia.com/gpu", "x"]),
            "operator": st.sampled_from(["Exists", "Equal"]),
            "effect": st.sampled_from(["NoSchedule", "NoExecute"]),
        },
    ),
    max_size=2,
)


@st.composite
def container(draw: st.DrawFn) -> Json:
    limits = draw(st.dictionaries(NAMES, AMOUNTS, max_size=2))
    # as the API server sends it: requests are filled in from limits
    requests = limits if draw(st.booleans()) else draw(st.dictionaries(NAMES, AMOUNTS, max_size=2))
    found: Json = {"name": draw(st.sampled_from("abc")), "image": "x"}
    if limits or requests:
        found["resources"] = {key: value for key, value in (("limits", limits), ("requests", requests)) if value}
    return found


@st.composite
def pods(draw: st.DrawFn) -> Json:
    spec: Json = {"containers": draw(st.lists(container(), min_size=1, max_size=3))}
    for field, strategy in (
        ("initContainers", st.lists(container(), min_size=1, max_size=2)),
        ("tolerations", TOLERATIONS),
        ("affinity", st.sampled_from([{}, AFFINITY])),
        ("nodeSelector", st.just({"alpha.kubernetes.io/nvidia-gpu-name": "Tesla K80"})),
        ("schedulingGates", st.sampled_from([[], [{"name": "x/y"}], [{"name": "gputile.io/gang"}]])),
    ):
        if draw(st.booleans()):
            spec[field] = draw(strategy)
    meta: Json = {"name": "p", "namespace": "team"}
    for field, strategy in (("annotations", ANNOTATIONS), ("labels", LABELS)):
        if draw(st.booleans()):
            meta[field] = draw(strategy)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


@settings(max_examples=examples(400), deadline=None)
@given(pods())
def test_what_is_let_through_is_valid_when_stored_and_passes_again_unchanged(body: Json) -> None:
    """The patch applies, its result breaks no rule, asks for the same, and a second admission has nothing to do."""
    before = copy.deepcopy(body)
    first = mutate(request(body), GANGS)
    assert body == before
    if first.refusals:
        assert message(first.refusals).startswith("gputile: ")
        return
    stored = apply_patch(first.operations, body)
    assert body == before, "a patch must not write into what it is applied to"
    assert stored == by_the_book(json.loads(encode_patch(first.operations)), json.loads(json.dumps(body)))
    assert validate(request(stored), GANGS).refusals == ()
    second = mutate(request(stored), GANGS)
    assert (second.operations, second.refusals) == ((), ())
    assert parse_request(_pod(body), 128) == parse_request(_pod(stored), 128)


def _pod(body: Json) -> Pod:
    return msgspec.json.decode(json.dumps(body), type=Pod)


def by_the_book(patch: list[Json], document: Any) -> Any:
    """Apply a JSON patch as RFC 6902 says, written independently of ours."""
    for change in patch:
        steps = [re.sub("~1", "/", step).replace("~0", "~") for step in change["path"].split("/")[1:]]
        node = document
        for step in steps[:-1]:
            node = node[int(step)] if isinstance(node, list) else node[step]
        last = steps[-1]
        if change["op"] == "test":
            assert (node[int(last)] if isinstance(node, list) else node[last]) == change["value"]
        elif isinstance(node, list):
            if change["op"] == "add":
                node.insert(len(node) if last == "-" else int(last), change["value"])
            elif change["op"] == "remove":
                node.pop(int(last))
            else:
                node[int(last)] = change["value"]
        elif change["op"] == "remove":
            del node[last]
        else:
            assert change["op"] == "add" or last in node
            node[last] = change["value"]
    return document
