"""The bytes of admission: AdmissionReview in and out, and an answer to everything."""

import base64
import json
from typing import Any

import pytest

from gputile.controlplane.webhook import app as app_module
from gputile.controlplane.webhook.app import WebhookMetrics, review_app
from gputile.controlplane.webhook.server import LARGEST_BODY
from gputile.core.admission.review import AdmissionPolicy
from gputile.support.http_requests import BodyReader, monitoring_routes, routed
from gputile.support.http_server import Handler
from tests.fakes.http import ask, sent
from tests.unit.core.admission.builders import POLICY, Json, pod

GPU = {"nvidia.com/gpu": "1"}


class Served:
    """The handlers of reviews and of probes."""

    def __init__(self, **limits: Any) -> None:
        self.metrics = WebhookMetrics()
        self.intake = BodyReader(**{"largest": LARGEST_BODY, **limits})
        self.why: str | None = None
        self.app = review_app(self._policy, self.metrics, self.intake)
        self.health = routed(monitoring_routes(self.metrics.registry, lambda: self.why))

    def _policy(self, unsafe: bool) -> AdmissionPolicy:
        return AdmissionPolicy(POLICY.unit_mib, POLICY.trusted, False, unsafe)

    async def call(
        self, path: str, body: bytes = b"", method: str = "POST", app: Handler | None = None, ends: bool = True
    ) -> tuple[int, bytes]:
        return await ask(app or self.app, sent(path, body, method=method, ends=ends))

    async def review(self, path: str, body: Any, **changes: Any) -> Json:
        status, answer = await self.call(path, json.dumps(question(body, **changes)).encode())
        assert status == 200, answer
        found: Json = json.loads(answer)
        assert (found["apiVersion"], found["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
        assert found["response"]["uid"] == "the-uid"
        response: Json = found["response"]
        return response


def question(body: Any, **changes: Any) -> Json:
    """Return an AdmissionReview as kube-apiserver sends it."""
    return {
        "kind": "AdmissionReview",
        "apiVersion": "admission.k8s.io/v1",
        "request": {
            "uid": "the-uid",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "requestKind": {"group": "", "version": "v1", "kind": "Pod"},
            "name": "p",
            "namespace": "team",
            "operation": "CREATE",
            "userInfo": {"username": "somebody", "groups": ["system:authenticated"], "extra": {"a": ["b"]}},
            "object": body,
            "oldObject": None,
            "dryRun": False,
            "options": {"kind": "CreateOptions"},
            **changes,
        },
    }


@pytest.mark.anyio
async def test_a_gpu_pod_is_changed() -> None:
    response = await Served().review("/mutate", pod(GPU))
    assert response["allowed"] is True
    assert response["patchType"] == "JSONPatch"
    (change,) = json.loads(base64.b64decode(response["patch"]))
    assert change["path"] == "/spec/tolerations"


@pytest.mark.anyio
async def test_a_refusal_says_everything_and_changes_nothing() -> None:
    body = pod({"nvidia.com/gpu": "0.5"}, hostIPC=True)
    for path in ("/mutate", "/validate"):
        response = await Served().review(path, body)
        assert response["allowed"] is False
        assert "patch" not in response
        assert response["status"]["code"] == 422
        assert "[gpu-amount]" in response["status"]["message"]
        assert "[host-namespace]" in response["status"]["message"]


@pytest.mark.anyio
async def test_a_namespace_that_is_open_has_its_own_path() -> None:
    for path in ("/mutate", "/validate"):
        assert (await Served().review(path, pod(GPU, hostIPC=True)))["allowed"] is False
        assert (await Served().review(f"{path}/unsafe-access", pod(GPU, hostIPC=True)))["allowed"] is True


@pytest.mark.anyio
async def test_what_is_no_pod_is_refused_with_the_field() -> None:
    response = await Served().review("/mutate", {"spec": {"containers": [{"name": 5}]}})
    assert response["allowed"] is False
    assert "spec.containers[0].name" in response["status"]["message"]


@pytest.mark.anyio
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"{}",
        b'{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}',
        b'{"apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview", "request": {"uid": "u"}}',
        b'{"apiVersion": "admission.k8s.io/v1", "kind": "Other", "request": {"uid": "u"}}',
        b"[" * 100_000,
    ],
)
async def test_what_is_no_review_is_a_bad_request(body: bytes) -> None:
    served = Served()
    status, text = await served.call("/mutate", body)
    assert status == 400
    assert text.startswith(b"the body is not an AdmissionReview")
    assert len(text) < 300


@pytest.mark.anyio
async def test_an_error_of_our_own_tells_the_client_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(app_module, "mutate", fails)
    status, text = await Served().call("/mutate", json.dumps(question(pod(GPU))).encode())
    assert (status, text) == (500, b"internal error; see the webhook's log")


@pytest.mark.anyio
async def test_a_body_that_is_too_large_is_not_read_on() -> None:
    served = Served(largest=1000)
    assert (await served.call("/mutate", b"x" * 1001))[0] == 413
    assert served.intake.total == 0


@pytest.mark.anyio
async def test_other_paths_and_methods_are_not_served() -> None:
    served = Served()
    assert (await served.call("/mutate", method="GET"))[0] == 405
    assert (await served.call("/metrics", method="GET"))[0] == 404, "only reviews are served to the API server"
    assert (await served.call("/mutate", app=served.health))[0] == 404


@pytest.mark.anyio
@pytest.mark.requirement("B7")
async def test_the_probes_and_the_metrics() -> None:
    served = Served()
    await served.review("/mutate", pod(GPU))
    await served.review("/validate", pod(GPU, hostIPC=True))
    assert await served.call("/healthz", method="GET", app=served.health) == (200, b"ok")
    assert await served.call("/readyz", method="GET", app=served.health) == (200, b"ok")
    served.why = "no certificate"
    assert await served.call("/readyz", method="GET", app=served.health) == (503, b"no certificate")
    lines = (await served.call("/metrics", method="GET", app=served.health))[1].decode().splitlines()
    assert 'gputile_webhook_reviews_total{outcome="changed",webhook="mutate"} 1.0' in lines
    assert 'gputile_webhook_refusals_total{rule="host-namespace"} 1.0' in lines
