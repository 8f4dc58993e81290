"""Pods with more of everything than the policies in CEL judge: the same verdicts, for creation and for every change.

What CEL does with a list costs the square of its length, so the API server leaves such pods to the webhook.
"""

from collections.abc import Callable
from copy import deepcopy

import pytest

from tests.e2e.hostilepods import FIRST_OF_EACH, MEM, annotated
from tests.localcluster.admission import AGENT, Json, RunningWebhook, pod, refusal, verdict
from tests.localcluster.client import MERGE_PATCH, Api
from tests.localcluster.controlplane import ControlPlane

COUNT = "aliyun.com/gpu-count"
PODS = "/api/v1/namespaces/{}/pods"

pytestmark = pytest.mark.requirement("B2", "G2")


def mounted(path: str) -> Json:
    return {"volumeMounts": [{"name": "mine", "mountPath": path}]}


MINE = [{"name": "mine", "emptyDir": {}}]
# The rule that a pod breaks, by its policies or by the webhook; "" where it is stored.
BODIES: tuple[tuple[str, Json], ...] = (
    ("", pod("p")),
    ("", pod("p", {MEM: 1})),
    ("", pod("p", container={"securityContext": {"privileged": True}}, hostPID=True)),
    ("", pod("p", container=mounted("/etc"), volumes=MINE)),
    ("", pod("p", container={"terminationMessagePath": "/etc/ld.so.preload"})),
    ("", pod("p", meta=annotated(**{"gputile.io/gpu-weight": "x"}))),
    ("", pod("p", volumes=[{"name": "v", "hostPath": {"path": "/sys"}}])),
    ("device-annotation", pod("p", meta=annotated(**{"cdi.k8s.io/gpu": "x"}))),
    ("device-annotation", pod("p", meta=annotated(**{"nvidia.cdi.k8s.io/container.main": "x"}))),
    *((rule, body) for body, rule in FIRST_OF_EACH),
    ("gpu-amount", pod("p", {MEM: "0.5"})),
    ("gpu-share", pod("p", {MEM: 1}, meta=annotated(**{"gputile.io/gpu-weight": "x"}))),
)


def annotations(body: Json) -> None:
    body["metadata"].setdefault("annotations", {}).update({f"a{i}": "" for i in range(300)})


def volumes(body: Json) -> None:
    body["spec"].setdefault("volumes", []).extend({"name": f"v{i}", "emptyDir": {}} for i in range(300))


def containers(body: Json) -> None:
    body["spec"]["containers"] += [{"name": f"c{i}", "image": "x"} for i in range(70)]


def init_containers(body: Json) -> None:
    body["spec"].setdefault("initContainers", []).extend({"name": f"c{i}", "image": "x"} for i in range(70))


def variables(body: Json) -> None:
    body["spec"]["containers"][0].setdefault("env", []).extend({"name": f"E{i}", "value": ""} for i in range(1100))


def mounts(body: Json) -> None:
    body["spec"].setdefault("volumes", []).append({"name": "more", "emptyDir": {}})
    paths = ({"name": "more", "mountPath": f"/{i}"} for i in range(1100))
    body["spec"]["containers"][0].setdefault("volumeMounts", []).extend(paths)


def long_paths(body: Json) -> None:
    body["spec"].setdefault("volumes", []).append({"name": "more", "emptyDir": {}})
    mount = {"name": "more", "mountPath": "/nvidia" * 600}
    body["spec"]["containers"][0].setdefault("volumeMounts", []).append(mount)


def long_host_paths(body: Json) -> None:
    path = {"name": "more", "hostPath": {"path": "/data" * 1000}}
    body["spec"].setdefault("volumes", []).append(path)


def resources(body: Json) -> None:
    limits = body["spec"]["containers"][0].setdefault("resources", {}).setdefault("limits", {})
    limits.update({f"example.com/r{i}": "1" for i in range(600)})


def capabilities(body: Json) -> None:
    context = body["spec"]["containers"][0].setdefault("securityContext", {})
    context.setdefault("capabilities", {}).setdefault("add", []).extend(f"C{i}" for i in range(1100))


LARGE = (
    *(annotations, volumes, containers, init_containers, variables, mounts, long_paths, long_host_paths),
    *(resources, capabilities),
)


@pytest.mark.parametrize("larger", [lambda body: None, *LARGE], ids=["small", *(each.__name__ for each in LARGE)])
def test_a_large_pod_is_judged_as_a_small_one(
    control_plane: ControlPlane, webhook: RunningWebhook, larger: Callable[[Json], None]
) -> None:
    for rule, body in BODIES:
        judged = deepcopy(body)
        larger(judged)
        said = verdict(control_plane.api, "default", judged)
        assert (f"[{rule}]" in said) if rule else not said, (rule, said)


@pytest.mark.parametrize("count", [10, 300])
def test_a_change_is_judged_whatever_else_a_pod_has(
    control_plane: ControlPlane, webhook: RunningWebhook, namespace: str, count: int
) -> None:
    api, path = control_plane.api, PODS.format(namespace)
    many = {f"a{i}": "" for i in range(count)}
    for name, limits in (("plain", None), ("gpu", {MEM: 2})):
        api.post(path, pod(name, limits, meta={"annotations": many, "labels": {"a": "b"}}))
        for place in (name, f"{name}/status"):

            def change(place: str = place, **meta: Json) -> str:
                return refusal(api, "PATCH", f"{path}/{place}", {"metadata": meta}, MERGE_PATCH)

            assert change(labels={"a": place.replace("/", "-")}) == ""
            assert change(annotations={"mine": place}) == ""
            for key, rule in (
                ("gputile.io/allocation", "forged-allocation"),
                ("ALIYUN_COM_GPU_MEM_IDX", "forged-allocation"),
                ("gputile.io/memory-unit-mib", "forged-allocation"),
                ("cdi.k8s.io/gpu", "device-annotation"),
                ("gputile.io/gpu-weight", "gpu-share"),
                ("gputile.io/mps-active-thread-percentage", "gpu-share"),
            ):
                if rule == "gpu-share" and not limits:
                    continue  # nobody reads it
                said = change(annotations={key: "x"})
                assert f"[{rule}]" in said, (place, key, said)
                assert f"metadata.annotations[{key}]" in said, said
            for number in ("2", ""):
                assert "[gpu-count-changed]" in change(labels={COUNT: number}), (place, number)
        stored = api.get(f"{path}/{name}")["metadata"]
        own = stored["annotations"].keys() - many.keys()
        assert own == ({"mine", "gputile.io/memory-unit-mib"} if limits else {"mine"})


def test_no_small_pod_waits_for_the_webhook_and_every_large_one_does(
    control_plane: ControlPlane, webhook: RunningWebhook, namespace: str
) -> None:
    api, path = control_plane.api, PODS.format(namespace)
    for name, count in (("small", 10), ("large", 300)):
        api.post(path, pod(name, meta={"annotations": {f"a{i}": "" for i in range(count)}}))

    def patched(name: str, **meta: Json) -> str:
        return refusal(api, "PATCH", f"{path}/{name}", {"metadata": meta}, MERGE_PATCH)

    control_plane.processes[webhook.name].stop()
    try:
        assert verdict(api, namespace, pod("p")) == ""
        for larger in LARGE:
            body = pod("p")
            larger(body)
            assert "failed calling webhook" in verdict(api, namespace, body), larger.__name__
        assert patched("small", annotations={"b": "c"}) == ""
        assert "failed calling webhook" in patched("large", annotations={"b": "c"})
        assert patched("large", labels={"b": "c"}) == "", "a change of something else"
        assert refusal(api, "PATCH", f"{path}/large/status", {"status": {"message": "x"}}, MERGE_PATCH) == ""
        booked = {"metadata": {"annotations": {"gputile.io/allocation": '{"version": 1}'}}}
        agent = control_plane.identity(AGENT, ["system:masters"])
        with Api(control_plane.url, str(control_plane.ca), agent) as trusted:
            assert refusal(trusted, "PATCH", f"{path}/large", booked, MERGE_PATCH) == ""
    finally:
        webhook.start()
