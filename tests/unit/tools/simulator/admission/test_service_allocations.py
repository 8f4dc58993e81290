"""Two Services of the files cannot have one address or node port, as an API server says."""

import json
from pathlib import Path

import pytest

from gputile.tools.simulator.cluster.workload_pods import expand
from gputile.tools.simulator.documents.manifests import ManifestError
from tests.manifests import Json
from tests.unit.tools.simulator.builders import load_text

pytestmark = pytest.mark.requirement("B4")


def service(name: str, namespace: str, *ports: Json, **spec: object) -> Json:
    meta = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": {"ports": [*ports], **spec}}


def port(number: int, name: str = "a", protocol: str = "TCP") -> Json:
    return {"name": name, "port": 80, "protocol": protocol, "nodePort": number}


LOCAL = {"type": "LoadBalancer", "externalTrafficPolicy": "Local"}


@pytest.mark.parametrize(
    ("first", "second", "field"),
    [
        (service("a", "x", port(30080), type="NodePort"), service("b", "y", port(30080), type="NodePort"), "nodePort"),
        (
            service("a", "x", port(30081), type="NodePort"),
            service("b", "x", {"port": 80}, healthCheckNodePort=30081, **LOCAL),
            "healthCheckNodePort",
        ),
        (
            service("a", "x", {"port": 80}, clusterIP="10.0.0.9"),
            service("b", "x", {"port": 80}, clusterIP="10.0.0.9"),
            "clusterIPs[0]",
        ),
    ],
)
def test_what_two_services_want_is_refused(tmp_path: Path, first: Json, second: Json, field: str) -> None:
    with pytest.raises(ManifestError, match=r"Service/b: .*is already allocated") as found:
        expand(load_text(tmp_path, f"{json.dumps(first)}\n---\n{json.dumps(second)}").manifests, [])
    assert field in str(found.value)


def test_what_one_service_has_is_its_own(tmp_path: Path) -> None:
    both = service("a", "x", port(30080), port(30080, "b", "UDP"), type="NodePort")
    headless = [service(name, "x", {"port": 80}, clusterIP="None") for name in "bc"]
    text = "\n---\n".join(map(json.dumps, [both, *headless]))
    assert expand(load_text(tmp_path, text).manifests, []).pods == []


def test_a_service_has_its_own_port_once(tmp_path: Path) -> None:
    spec = {"healthCheckNodePort": 30081, **LOCAL}
    text = json.dumps(service("a", "x", port(30081), port(30081, "b", "UDP"), **spec))
    with pytest.raises(
        ManifestError, match=r"spec\.healthCheckNodePort: Invalid value: 30081: provided port is already"
    ):
        expand(load_text(tmp_path, text).manifests, [])
