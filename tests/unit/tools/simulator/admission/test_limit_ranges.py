"""What a LimitRange in the files makes of the containers of its namespace."""

import json
from pathlib import Path

import pytest

from gputile.api.core import Container
from gputile.api.well_known import LEGACY_GPU, WHOLE_GPU
from gputile.tools.simulator.cluster.workload_pods import expand
from gputile.tools.simulator.documents.manifests import ManifestError
from tests.manifests import DEPLOYMENT, MEM, POD, Json, changed
from tests.unit.tools.simulator.builders import load_text

pytestmark = pytest.mark.requirement("B4")


def limits(namespace: str = "default", kind: str = "Container", **amounts: Json) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": {"name": "l", "namespace": namespace},
        "spec": {"limits": [{"type": kind, **amounts}]},
    }


def container(tmp_path: Path, *bodies: Json) -> Container:
    """Return the container of the first pod that the objects make."""
    return expand(load_text(tmp_path, "\n".join(map(json.dumps, bodies))).manifests, []).pods[0].spec.containers[0]


def asking(body: Json = POD, **resources: Json) -> Json:
    path = "spec.containers.0" if body["kind"] == "Pod" else "spec.template.spec.containers.0"
    return changed(body, f"{path}.resources", {"limits": {MEM: 2, **resources.pop("limits", {})}, **resources})


@pytest.mark.parametrize(
    ("amounts", "resources", "limit", "request_"),
    [
        ({"default": {"cpu": "2"}, "defaultRequest": {"cpu": "1"}}, {}, "2", "1"),
        ({"default": {"cpu": "2"}}, {}, "2", "2"),
        ({"max": {"cpu": "2"}}, {}, "2", "2"),
        ({"min": {"cpu": "1"}}, {}, None, "1"),
        ({"min": {"cpu": "1"}, "max": {"cpu": "3"}}, {}, "3", "3"),
        ({"default": {"cpu": "2"}, "defaultRequest": {"cpu": "1"}}, {"limits": {"cpu": "3"}}, "3", "3"),
        ({"default": {"cpu": "2"}, "defaultRequest": {"cpu": "1"}}, {"requests": {"cpu": "1500m"}}, "2", "1500m"),
    ],
)
@pytest.mark.parametrize("body", [POD, DEPLOYMENT], ids=lambda body: body["kind"])
def test_containers_get_the_defaults(
    tmp_path: Path, body: Json, amounts: Json, resources: Json, limit: str | None, request_: str
) -> None:
    found = container(tmp_path, limits(**amounts), asking(body, **resources)).resources
    assert (found.limits.get("cpu"), found.requests.get("cpu")) == (limit, request_)
    assert found.limits[MEM] == 2


@pytest.mark.parametrize(
    ("amounts", "resources", "said"),
    [
        (
            {"max": {"cpu": "1"}},
            {"limits": {"cpu": 2}},
            r'\.limits\["cpu"\]: Forbidden: maximum cpu usage .* is 1, but it is 2',
        ),
        ({"max": {"cpu": "1"}}, {"requests": {"cpu": "1001m"}}, r'\.requests\["cpu"\]: Forbidden: maximum'),
        (
            {"min": {"cpu": "1"}},
            {"requests": {"cpu": "999m"}},
            r'\.requests\["cpu"\]: Forbidden: minimum cpu usage per',
        ),
        ({"max": {MEM: 1}}, {}, r'\.limits\["aliyun.com/gpu-mem"\]: Forbidden: maximum aliyun.com/gpu-mem usage'),
        (
            {"default": {"cpu": "1"}},
            {"requests": {"cpu": "2"}},
            r': Invalid value: "2": must be less than or equal to cpu limit of 1 \(with what a LimitRange',
        ),
        ({"defaultRequest": {"example.com/x": 1}}, {}, r"\.limits: Required value: Limit must be set for non over"),
        ({"default": {"hugepages-2Mi": "2Mi"}}, {}, ": Forbidden: HugePages require cpu or memory"),
    ],
)
@pytest.mark.parametrize("body", [POD, DEPLOYMENT], ids=lambda body: body["kind"])
def test_containers_beyond_a_bound_are_refused(
    tmp_path: Path, body: Json, amounts: Json, resources: Json, said: str
) -> None:
    with pytest.raises(ManifestError, match=rf"containers\[0\]\.resources(\.requests)?{said}"):
        container(tmp_path, asking(body, **resources), limits(**amounts))


@pytest.mark.parametrize(
    ("amounts", "resources", "said"),
    [
        (
            {"default": {"cpu": "4"}},
            {"limits": {"cpu": "2"}},
            'limits\\["cpu"\\]: .* less than or equal to pod limits of 2',
        ),
        (
            {"defaultRequest": {"cpu": "3"}},
            {"requests": {"cpu": "1"}},
            'requests\\["cpu"\\]: Invalid value: "1": must be g',
        ),
    ],
)
def test_defaults_beyond_what_a_pod_has_as_a_whole_are_refused(
    tmp_path: Path, amounts: Json, resources: Json, said: str
) -> None:
    with pytest.raises(ManifestError, match=said):
        container(tmp_path, limits(**amounts), changed(POD, "spec.resources", resources))


@pytest.mark.parametrize("other", [limits("other", max={"cpu": "1"}), limits("other", kind="Pod", max={"cpu": "1"})])
def test_others_say_nothing_of_a_container(tmp_path: Path, other: Json) -> None:
    assert container(tmp_path, other, asking(limits={"cpu": 2})).resources.limits["cpu"] == 2


def test_one_that_is_wrong_is_refused_itself(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"LimitRange/l: spec\.limits\[0\]"):
        container(tmp_path, limits(max={"cpu": "much"}), POD)


def among(*containers: Json, init: tuple[Json, ...] = (), **spec: Json) -> Json:
    """Return a pod of containers that have these resources; an init one may have a restartPolicy beside them."""

    def named(kind: str, resources: tuple[Json, ...]) -> list[Json]:
        own = [({k: v for k, v in each.items() if k != "restartPolicy"}, each) for each in resources]
        return [
            {"name": f"{kind}{i}", "image": "i", "resources": rest}
            | {k: v for k, v in each.items() if k == "restartPolicy"}
            for i, (rest, each) in enumerate(own)
        ]

    body = changed(POD, "spec", {"containers": named("c", containers), **spec})
    return changed(body, "spec.initContainers", named("i", init)) if init else body


ONE: Json = {"limits": {"cpu": "1"}}
HALF_ASKED: Json = {"limits": {"cpu": "1"}, "requests": {"cpu": "500m"}}
SIDECAR: Json = {**ONE, "restartPolicy": "Always"}


# What an API server of Kubernetes 1.36 says of each.
@pytest.mark.parametrize(
    ("amounts", "pod", "said"),
    [
        ({"max": {"cpu": "2"}}, among(ONE, ONE), ""),
        ({"max": {"cpu": "1999m"}}, among(ONE, ONE), "maximum cpu usage per Pod is 1999m, and it is more"),
        ({"max": {"cpu": "1"}}, among({}), "maximum cpu usage per Pod is 1, and no limit is specified"),
        ({"max": {MEM: 2}}, among({"limits": {MEM: 1}}, {"limits": {MEM: 1}}), ""),
        ({"max": {MEM: 2}}, among({"limits": {MEM: 1}}, {"limits": {MEM: 2}}), "maximum aliyun.com/gpu-mem usage"),
        ({"max": {"cpu": "1"}}, among(ONE, init=(ONE, ONE)), ""),
        ({"max": {"cpu": "1"}}, among(ONE, init=(SIDECAR,)), "maximum cpu usage per Pod is 1, and it is more"),
        ({"max": {"cpu": "2"}}, among({}, init=(SIDECAR, ONE)), ""),
        ({"max": {"cpu": "1"}}, among({}, init=(SIDECAR, ONE)), "maximum cpu usage per Pod is 1, and it is more"),
        ({"min": {"cpu": "1"}}, among(HALF_ASKED, HALF_ASKED), ""),
        ({"min": {"cpu": "1001m"}}, among(HALF_ASKED, HALF_ASKED), "minimum cpu usage per Pod is 1001m, and it is le"),
        ({"min": {"cpu": "1"}}, among({}), "minimum cpu usage per Pod is 1, and no request is specified"),
        ({"maxLimitRequestRatio": {"cpu": "2"}}, among(HALF_ASKED), ""),
        ({"maxLimitRequestRatio": {"cpu": "1500m"}}, among(HALF_ASKED), "cpu max limit to request ratio per Pod is 1"),
        ({"maxLimitRequestRatio": {"cpu": "1500m"}}, among(HALF_ASKED, ONE), ""),
        ({"maxLimitRequestRatio": {"cpu": "2"}}, among({"requests": {"cpu": 1}}), "and no limit is specified"),
        ({"maxLimitRequestRatio": {"cpu": "2"}}, among({}), "and no request is specified"),
        ({"max": {"cpu": "1"}}, among({}, resources={"limits": {"cpu": "1"}}), ""),
        ({"max": {"cpu": "1"}}, among({}, resources={"limits": {"cpu": "2"}}), "maximum cpu usage per Pod is 1"),
        ({"min": {"cpu": "2"}}, among({}, resources={"limits": {"cpu": "2"}}), ""),
    ],
)
def test_a_pod_as_a_whole_is_bounded(tmp_path: Path, amounts: Json, pod: Json, said: str) -> None:
    assert said in refusal(tmp_path, limits(kind="Pod", **amounts), pod)
    assert bool(refusal(tmp_path, limits(kind="Pod", **amounts), pod)) == bool(said)


@pytest.mark.parametrize(
    ("ratio", "pod", "refused"),
    [
        ("2", among(HALF_ASKED), False),
        ("1500m", among(HALF_ASKED, ONE), True),
        ("1500m", among(ONE, init=(HALF_ASKED,)), True),
        ("2", among(ONE, {}), True),
    ],
)
def test_the_ratio_of_each_container_is_bounded(tmp_path: Path, ratio: str, pod: Json, refused: bool) -> None:
    said = refusal(tmp_path, limits(maxLimitRequestRatio={"cpu": ratio}), pod)
    assert ("cpu max limit to request ratio per Container" in said) == refused == bool(said)


@pytest.mark.parametrize(
    ("kind", "amounts", "said"),
    [
        ("Container", {"default": {LEGACY_GPU: 1}}, "is the old name of nvidia.com/gpu: remove one of the two"),
        ("Pod", {"max": {LEGACY_GPU: 1}}, "maximum alpha.kubernetes.io/nvidia-gpu usage per Pod is 1, and no limit"),
        ("Pod", {"max": {WHOLE_GPU: 1}}, ""),
        ("Container", {"maxLimitRequestRatio": {WHOLE_GPU: 1}}, ""),
    ],
)
def test_a_pod_is_bounded_as_the_webhook_hands_it_on(tmp_path: Path, kind: str, amounts: Json, said: str) -> None:
    """The webhook writes the new name for the old one, and LimitRanger then sees the pod once more."""
    found = refusal(tmp_path, limits(kind=kind, **amounts), among({"limits": {LEGACY_GPU: 1}}))
    assert said in found
    assert bool(found) == bool(said)


def refusal(tmp_path: Path, *bodies: Json) -> str:
    """Return why the objects are refused, "" where they are taken."""
    try:
        container(tmp_path, *bodies)
    except ManifestError as error:
        return str(error)
    return ""
