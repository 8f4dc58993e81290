"""Two Services of the files cannot have one address or node port, as an API server says."""

import json
from pathlib import Path
from typing import Any

import pytest

from gputile.api.core import ObjectMeta
from gputile.api.workloads import ListedService, ListedServicePort, ListedServiceSpec
from gputile.tools.simulator.cluster.intake import Intake
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
        (
            service("a", "x", {"port": 80}, clusterIP="2001:db8::1"),
            service("b", "x", {"port": 80}, clusterIP="2001:0DB8::1"),
            "clusterIPs[0]",
        ),
    ],
)
def test_what_two_services_want_is_refused(tmp_path: Path, first: Json, second: Json, field: str) -> None:
    with pytest.raises(ManifestError, match=r"Service/b: .*is already allocated") as found:
        expand(load_text(tmp_path, f"{json.dumps(first)}\n{json.dumps(second)}").manifests, [])
    assert field in str(found.value)


def test_what_one_service_has_is_its_own(tmp_path: Path) -> None:
    both = service("a", "x", port(30080), port(30080, "b", "UDP"), type="NodePort")
    headless = [service(name, "x", {"port": 80}, clusterIP="None") for name in "bc"]
    text = "\n".join(map(json.dumps, [both, *headless]))
    assert expand(load_text(tmp_path, text).manifests, []).pods == []


def test_a_service_has_its_own_port_once(tmp_path: Path) -> None:
    spec = {"healthCheckNodePort": 30081, **LOCAL}
    text = json.dumps(service("a", "x", port(30081), port(30081, "b", "UDP"), **spec))
    with pytest.raises(
        ManifestError, match=r"spec\.healthCheckNodePort: Invalid value: 30081: provided port is already"
    ):
        expand(load_text(tmp_path, text).manifests, [])


def live(name: str, *ports: tuple[int, str, int], **spec: Any) -> ListedService:
    listed = [ListedServicePort(port=number, protocol=protocol, node_port=opened) for number, protocol, opened in ports]
    meta = ObjectMeta(name=name, namespace="x")
    return ListedService(metadata=meta, spec=ListedServiceSpec(ports=listed, **spec))


def refused(tmp_path: Path, there: ListedService, *bodies: Json) -> str:
    text = "\n".join(map(json.dumps, bodies))
    try:
        expand(load_text(tmp_path, text).manifests, [], Intake(services=[there]))
    except ManifestError as error:
        return str(error)
    return ""


OPEN = {"type": "NodePort"}
OTHER = service("b", "x", port(30080), **OPEN)


@pytest.mark.parametrize(
    ("there", "body"),
    [
        (live("a", (80, "TCP", 30080)), OTHER),
        (live("a", (80, "TCP", 0), health_check_node_port=30080), OTHER),
        (live("a", cluster_ip="10.0.0.9"), service("b", "x", {"port": 80}, clusterIP="10.0.0.9")),
        (live("a", cluster_ips=["10.0.0.9", "2001:db8::1"]), service("b", "y", {"port": 80}, clusterIP="2001:DB8::1")),
    ],
)
def test_what_a_service_of_the_cluster_has_is_refused(tmp_path: Path, there: ListedService, body: Json) -> None:
    assert "is already allocated by the cluster's Service x/a" in refused(tmp_path, there, body)


@pytest.mark.parametrize(
    ("own", "is_refused"),
    [
        (service("a", "x", port(30080), **OPEN), True),
        (service("a", "x", {"port": 80, "name": "a"}, **OPEN), True),
        (service("a", "x", port(30081), **OPEN), False),
        (service("a", "x", {"port": 80, "name": "a"}), False),
        (service("a", "x", {"port": 81, "name": "a"}, **OPEN), False),
    ],
    ids=["named", "kept", "another", "no type", "another port"],
)
def test_a_port_is_free_when_its_service_gives_it_up(tmp_path: Path, own: Json, is_refused: bool) -> None:
    """A port that a manifest does not name stays, and one whose port is no more goes."""
    there = live("a", (80, "TCP", 30080))
    assert refused(tmp_path, there, own) == ""
    assert bool(refused(tmp_path, there, own, OTHER)) == is_refused
    assert refused(tmp_path, there, OTHER, own) != "", "the other one comes first"
