"""Commands that read a live cluster go by the configuration that is in force there."""

import json
import re
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from typer.testing import CliRunner

from gputile.api.core import Pod
from gputile.api.resource_claims import RESOURCE_API, RESOURCE_CLAIMS_PATH
from gputile.api.well_known import RESERVATION_ANNOTATION
from gputile.cli.app import app
from gputile.cli.options import ApiOptions
from gputile.cli.reads.live_cluster import read_cluster
from gputile.core.devices.allocation import Allocation, Reservation, encode_reservation
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.claimbuilders import claim, pod_with_claims
from tests.fakes.claimbuilders import result as allocated
from tests.fakes.corebuilders import bound, gpu_node, pod, share
from tests.fakes.livecluster import GIB, machine, put

pytestmark = pytest.mark.requirement("B4", "V3")

run = CliRunner()
CONFIG_MAPS = "/api/v1/namespaces/gputile/configmaps"
POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: w}\n"
POD += "spec: {containers: [{name: main, image: i, resources: {limits: {aliyun.com/gpu-mem: 4}}}]}\n"


def configure(server: FakeApiServer, text: str) -> None:
    maps = server.store[CONFIG_MAPS]
    maps["a-scheduler"] = {"metadata": {"name": "a-scheduler"}, "data": {"scheduler.yaml": "{}"}}
    maps["gputile"] = {"metadata": {"name": "gputile"}, "data": {"configuration.yaml": text}}


def kept(ends_in_s: int) -> Pod:
    """Return a pod of a gang, for which the whole GPU is kept."""
    gpu = share("GPU-n-0", 15 * GIB)
    hold = Reservation("g/1", 1, 1, "n", time.time_ns() + ends_in_s * 10**9, Allocation((gpu,), {}, GIB, mode="share"))
    return pod("member", mem=15, annotations={RESERVATION_ANNOTATION: encode_reservation(hold)})


@pytest.mark.requirement("M13")
@pytest.mark.parametrize(
    ("configuration", "ends_in_s", "fits"),
    [
        ("admission: {gangs: true}", 60, False),
        ("admission: {gangs: true}", -60, True),
        ("admission: {gangs: false}", 60, True),
        (None, 60, False),
        (None, -60, True),
    ],
)
def test_kept_places_count_where_gangs_are_planned(
    server: FakeApiServer, kubeconfig: str, configuration: str | None, ends_in_s: int, fits: bool
) -> None:
    """Also where the configuration cannot be read, since the chart's default is that they are."""
    put(server, machine(), kept(ends_in_s), pod("w", mem=4))
    if configuration is not None:
        configure(server, configuration)
    explained = run.invoke(app, ["explain", "w", "--kubeconfig", kubeconfig])
    assert explained.exit_code == (0 if fits else 3), explained.output
    simulated = run.invoke(app, ["simulate", "--from-cluster", "-f", "-", "--kubeconfig", kubeconfig], input=POD)
    assert simulated.exit_code == (0 if fits else 3), simulated.output
    inspected = run.invoke(app, ["inspect", "--kubeconfig", kubeconfig])
    assert ("0/15 (0%)" in inspected.stdout) == fits, inspected.output
    for result in (explained, simulated, inspected):
        said = "the cluster's configuration is unknown (namespace gputile: no ConfigMap of a release is there)"
        assert (said in result.stderr) == (configuration is None)


@pytest.mark.requirement("B4", "U7")
def test_the_most_pods_of_a_gpu_are_those_of_the_installation(server: FakeApiServer, kubeconfig: str) -> None:
    """As many as the release says, no more and no fewer."""
    put(server, machine(mode="cgpu"), pod("w", mem=1))
    for i in range(8):
        put(server, bound(f"p{i}", "n", gib=1))
    command = ["explain", "w", "--kubeconfig", kubeconfig]
    configure(server, "maxPodsPerGpu: 8")
    assert run.invoke(app, command).exit_code == 3
    configure(server, "maxPodsPerGpu: 9")
    result = run.invoke(app, command)
    assert (result.exit_code, result.stderr) == (0, "")


def test_another_namespace_and_a_reader_without_the_right(server: FakeApiServer, kubeconfig: str) -> None:
    put(server, machine(), kept(60), pod("w", mem=4))
    other = {"metadata": {"name": "g"}, "data": {"configuration.yaml": "admission: {gangs: false}"}}
    server.store["/api/v1/namespaces/other/configmaps"] = {"g": other}
    command = ["explain", "w", "--kubeconfig", kubeconfig]
    assert run.invoke(app, [*command, "--installed-in", "other"]).exit_code == 0
    refused = run.invoke(app, [*command, "--installed-in", "nobody"])
    assert refused.exit_code == 3
    assert "/api/v1/namespaces/nobody/configmaps?labelSelector=" in refused.stderr
    assert "404 NotFound" in refused.stderr
    configure(server, "maxPodsPerGpu: none")
    assert "ConfigMap gputile cannot be read: " in run.invoke(app, command).stderr


@pytest.mark.requirement("B5")
def test_a_pod_that_a_quota_refuses_is_explained_by_its_controller(server: FakeApiServer, kubeconfig: str) -> None:
    put(server, machine())
    refused = "pods is forbidden: exceeded quota: gpus, requested: requests.aliyun.com/gpu-mem=60, limited: 100"
    said = {"reason": "FailedCreate", "message": refused, "involvedObject": {"kind": "Job", "name": "train-29"}}
    server.store["/api/v1/namespaces/default/events"] = {"e": {"metadata": {"name": "e"}, **said}}
    for named in ("train-29", "train-29-x", "job/train-29", "cronjob/train"):
        result = run.invoke(app, ["explain", named, "--kubeconfig", kubeconfig])
        assert result.exit_code == 2
        assert "Job train-29 could not create it" in result.stderr
        assert "ResourceQuota gpus holds it" in result.stderr
    del server.store["/api/v1/namespaces/default/events"]
    result = run.invoke(app, ["explain", "train", "--kubeconfig", kubeconfig])
    assert result.exit_code == 2
    assert result.stderr.endswith("there is no pod default/train\n")


@pytest.mark.requirement("U5", "V3")
def test_the_unit_of_the_installation_goes_before_that_of_the_nodes(server: FakeApiServer, kubeconfig: str) -> None:
    """A pod that was stamped with no unit asks in the configured one, as the extender reads it."""
    put(server, machine(), pod("w", mem=4))
    configure(server, "gpuMemoryUnit: 128MiB")
    answer: Any = json.loads(run.invoke(app, ["explain", "w", "--kubeconfig", kubeconfig, "-o", "json"]).stdout)
    assert answer["text"].startswith("Pod default/w asks for 512 MiB on one GPU.")
    del server.store[CONFIG_MAPS]
    answer = json.loads(run.invoke(app, ["explain", "w", "--kubeconfig", kubeconfig, "-o", "json"]).stdout)
    assert answer["text"].startswith("Pod default/w asks for 4 GiB on one GPU.")


def test_what_cannot_be_read_is_not_left_out_in_silence(server: FakeApiServer, kubeconfig: str, tmp_path: Path) -> None:
    """It may hold the very GPU that another pod is said to get."""
    put(server, machine())
    server.store["/api/v1/pods"]["p"] = {"metadata": {"name": "p", "namespace": "a"}, "spec": {"priority": "high"}}
    (tmp_path / "w.yaml").write_text(POD)
    live = ["--kubeconfig", kubeconfig]
    judged = run.invoke(app, ["simulate", "--from-cluster", "-f", str(tmp_path / "w.yaml"), *live])
    said = "pod a/p cannot be read: spec.priority: must be a whole number"
    assert (judged.exit_code, said in judged.stderr) == (2, True), judged.stderr
    assert "nothing can be decided" in judged.stderr
    shown = run.invoke(app, ["inspect", *live])
    assert (shown.exit_code, f"note: {said}" in shown.stderr) == (0, True), shown.stderr


def test_a_credential_plugin_is_asked_once_for_several_looks(
    server: FakeApiServer, kubeconfig: str, tmp_path: Path
) -> None:
    """As with --watch, which looks every two seconds: a plugin may open a browser, or take seconds."""
    counted, plugin = tmp_path / "counted", tmp_path / "plugin"
    answer = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "t"}}
    plugin.write_text(f"#!/bin/sh\necho x >> {counted}\ncat <<'EOF'\n{json.dumps(answer)}\nEOF\n")
    plugin.chmod(0o755)
    document = yaml.safe_load(Path(kubeconfig).read_text())
    document["contexts"][0]["context"]["user"] = "u"
    exec_: dict[str, Any] = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": str(plugin),
        "interactiveMode": "Never",
    }
    document["users"] = [{"name": "u", "user": {"exec": exec_}}]
    Path(kubeconfig).write_text(yaml.safe_dump(document))
    reach = ApiOptions(kubeconfig=Path(kubeconfig))
    for _ in range(3):
        read_cluster(reach, None, "gputile")
    assert counted.read_text() == "x\n"


CLAIM = claim("c", allocated("n", 0, memory="4Gi"), pods=["w"], memory="4Gi")


def put_claim(server: FakeApiServer) -> None:
    """Store a node of claims, and a claim for 4 of its 15 GiB, which pod w uses."""
    put(server, gpu_node("n", mode="cgpu", sizes=[15 * GIB], claims=True), pod_with_claims("w", "c"))
    server.store[RESOURCE_CLAIMS_PATH] = {"c": msgspec.to_builtins(CLAIM)}


@pytest.mark.requirement("B8")
def test_gpus_of_a_node_of_claims_show_who_holds_them(server: FakeApiServer, kubeconfig: str) -> None:
    put_claim(server)
    inspected = run.invoke(app, ["inspect", "-d", "--kubeconfig", kubeconfig])
    assert "ResourceClaims" not in inspected.stderr
    assert re.search(r"^w +default +4$", inspected.stdout, re.MULTILINE), inspected.output
    top = json.loads(run.invoke(app, ["top", "-o", "json", "--kubeconfig", kubeconfig]).stdout)
    assert [(each["name"], each["bookedMib"]) for each in top["pods"]] == [("w", 4 * GIB)]


@pytest.mark.requirement("B8")
@pytest.mark.parametrize("command", [["inspect"], ["top"], ["explain", "w"]])
def test_claims_that_may_not_be_listed_are_told_of_once(
    server: FakeApiServer, kubeconfig: str, command: list[str]
) -> None:
    put_claim(server)
    server.refused[RESOURCE_CLAIMS_PATH] = 403, "Forbidden"
    found = run.invoke(app, [*command, "--kubeconfig", kubeconfig])
    assert found.stderr.count("ResourceClaims are unknown") == 1, found.output


@pytest.mark.requirement("B8")
def test_a_dump_tells_what_claims_hold(tmp_path: Path) -> None:
    node = gpu_node("n", mode="cgpu", sizes=[15 * GIB], claims=True)
    kinds = {"v1": ("Node", node), RESOURCE_API: ("ResourceClaim", CLAIM)}
    items = [
        {"apiVersion": version, "kind": kind} | msgspec.to_builtins(each) for version, (kind, each) in kinds.items()
    ]
    dump = tmp_path / "dump.json"
    dump.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    inspected = run.invoke(app, ["inspect", "--cluster", str(dump), "-o", "json"])
    (node_shown,) = json.loads(inspected.stdout)["nodes"]
    assert [each["name"] for each in node_shown["pods"]] == ["w"]
