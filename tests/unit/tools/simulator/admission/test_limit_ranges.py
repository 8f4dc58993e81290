"""What a LimitRange in the files makes of the containers of its namespace."""

import json
from pathlib import Path

import pytest

from gputile.api.core import Container
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
    return expand(load_text(tmp_path, "\n---\n".join(map(json.dumps, bodies))).manifests, []).pods[0].spec.containers[0]


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


@pytest.mark.parametrize("other", [limits("other", max={"cpu": "1"}), limits(kind="Pod", max={"cpu": "1"})])
def test_others_say_nothing_of_a_container(tmp_path: Path, other: Json) -> None:
    assert container(tmp_path, other, asking(limits={"cpu": 2})).resources.limits["cpu"] == 2


def test_one_that_is_wrong_is_refused_itself(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"LimitRange/l: spec\.limits\[0\]"):
        container(tmp_path, limits(max={"cpu": "much"}), POD)
