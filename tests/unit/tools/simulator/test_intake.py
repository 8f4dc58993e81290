"""A manifest that a cluster would not take is not taken here, and says what is wrong where."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gputile.api.config.v1alpha1 import Configuration
from gputile.cli.app import app
from gputile.tools.simulator.admission import Admission
from gputile.tools.simulator.fields import UnknownFields
from gputile.tools.simulator.intake import Intake
from gputile.tools.simulator.manifests import ManifestError
from gputile.tools.simulator.pod_kinds import PodKind, PodKinds
from gputile.tools.simulator.workloads import expand
from tests.unit.tools.simulator.builders import load_text, node, write
from tests.unit.tools.simulator.manifests import (
    DEPLOYMENT,
    FORBIDDEN,
    JOB,
    POD,
    REFUSED,
    VALID,
    Case,
    Json,
    changed,
    ids,
)

pytestmark = pytest.mark.requirement("B4")

run = CliRunner()
CLUSTER = (
    "apiVersion: gputile.io/v1alpha1\nkind: Cluster\n"
    "nodes: [{name: 'n', mode: share, gpus: {count: 2, memory: 15GiB}}]\n"
)
NAMESPACE = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}}


def verdict(tmp_path: Path, *bodies: Json, intake: Intake | None = None) -> str:
    """Return why the objects are refused, "" where they are not."""
    try:
        expand(load_text(tmp_path, "\n".join(map(json.dumps, bodies))), [node("n")], intake)
    except ManifestError as error:
        return str(error)
    return ""


def simulate(tmp_path: Path, text: str, *options: str) -> tuple[int, str]:
    files = ["--cluster", write(tmp_path, CLUSTER, "cluster.yaml"), "-f", write(tmp_path, text)]
    result = run.invoke(app, ["simulate", *files, *options])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.stderr


@pytest.mark.parametrize("body", VALID, ids=range(len(VALID)))
def test_what_is_right_is_taken(tmp_path: Path, body: Json) -> None:
    assert verdict(tmp_path, body) == ""


@pytest.mark.parametrize("case", [*REFUSED, *FORBIDDEN], ids=ids([*REFUSED, *FORBIDDEN]))
def test_what_is_wrong_is_refused_with_file_document_and_field(tmp_path: Path, case: Case) -> None:
    said = verdict(tmp_path, case.body)
    assert case.said in said
    assert all(line.startswith(f"{tmp_path / 'm.yaml'}, document 1: ") for line in said.split("\n"))


def test_all_mistakes_of_all_objects_are_told_at_once(tmp_path: Path) -> None:
    twice = changed(changed(POD, "spec.nodeSelectr", {}), "spec.containers.0.image", 1)
    negative, unknown = changed(JOB, "spec.parallelism", -1), changed(DEPLOYMENT, "spec.replica", 1)
    said = verdict(tmp_path, twice, negative, unknown).split("\n")
    assert [line.partition(": ")[0].rpartition(" ")[2] for line in said] == ["1", "1", "2", "3"]
    many = [changed(POD, "metadata.name", f"A{i}") for i in range(60)]
    assert verdict(tmp_path, *many).split("\n")[-1] == "and 10 more mistakes"


def test_what_admission_refuses_passes_without_it(tmp_path: Path) -> None:
    """The percentage beside memory is left to the decision then; a pod on a node of its own choice is never judged."""
    off = Intake(Admission(enforced=False))
    decided = [case for case in FORBIDDEN if "nodeName" not in case.body["spec"]]
    assert [verdict(tmp_path, case.body, intake=off) for case in decided] == [""] * len(decided)
    assert len(decided) == len(FORBIDDEN) - 1
    visible = json.dumps(FORBIDDEN[0].body)
    assert simulate(tmp_path, visible)[0] == 2
    assert simulate(tmp_path, visible, "--admission=off")[0] == 3, "nothing tolerates the taint of GPU nodes then"


def test_a_namespace_with_unsafe_access_may(tmp_path: Path) -> None:
    """As the namespace's label in the same files says."""
    allowed = changed(NAMESPACE, "metadata.labels", {"gputile.io/unsafe-gpu-access": "allowed"})
    visible = FORBIDDEN[0].body
    assert "[environment]" in verdict(tmp_path, NAMESPACE, visible)
    assert verdict(tmp_path, allowed, visible) == ""
    known = Intake(Admission(unsafe=frozenset({"default"})))
    assert verdict(tmp_path, visible, intake=known) == ""
    assert "[environment]" in verdict(tmp_path, NAMESPACE, visible, intake=known)
    foreign = changed(allowed, "apiVersion", "example.com/v1")
    kinds = PodKinds({("example.com/v1", "Namespace"): PodKind(api_version="example.com/v1", kind="Namespace")})
    assert "[environment]" in verdict(tmp_path, foreign, visible, intake=Intake(kinds=kinds))


def test_unknown_fields_are_notes_where_one_asks_for_that(tmp_path: Path) -> None:
    body = changed(POD, "spec.nodeSelectr", {})
    manifests = load_text(tmp_path, json.dumps(body))
    assert "unknown field" in expand(manifests, [], Intake(unknown_fields=UnknownFields.NOTED)).notes[0].text
    assert expand(manifests, [], Intake(unknown_fields=UnknownFields.IGNORED)).notes == []
    assert simulate(tmp_path, json.dumps(body), "--validate=warn")[0] == 0
    assert simulate(tmp_path, json.dumps(body), "--validate", "strict")[0] == 2
    wrong = changed(body, "spec.containers.0.image", 1)
    assert "must be a string" in verdict(tmp_path, wrong, intake=Intake(unknown_fields=UnknownFields.IGNORED))


def test_what_an_api_server_has_stored_is_not_judged_again(tmp_path: Path) -> None:
    """A cluster may be newer than what is known here, and what gputile wrote is no forgery."""
    stored = changed(changed(POD, "metadata.annotations", {"gputile.io/allocation": "{}"}), "metadata.uid", "a-b")
    stored = changed(changed(stored, "spec.nodeName", "n"), "status", {"phase": "Running", "new": 1})
    manifests = load_text(tmp_path, json.dumps(stored))
    (pod,) = (expansion := expand(manifests, [])).pods
    assert (pod.spec.node_name, "gputile.io/allocation" in pod.metadata.annotations) == ("n", True)
    assert ["status.new: unknown field" in note for note in map(str, expansion.notes)] == [True, False]


def running(name: str, uid: str, cpu: str, **status: Any) -> Json:
    spec = {"nodeName": "n", "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}]}
    metadata = {"name": name, "namespace": "default", "uid": uid}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status}


@pytest.mark.parametrize("text", ["null", "[]", '{"kind": "PodList", "apiVersion": "v1", "items": []}'])
def test_nothing_is_no_success(tmp_path: Path, text: str) -> None:
    assert simulate(tmp_path, text)[0] == 2
    result = run.invoke(app, ["simulate", "--cluster", write(tmp_path, CLUSTER, "cluster.yaml"), "-f", "-"], input=text)
    assert result.exit_code == 2


EXPORTED = "5f1d8a7e-0000-4000-8000-000000000000"


@pytest.mark.parametrize("status", [{}, {"phase": "Running"}, {"phase": "Succeeded"}], ids=str)
def test_a_pod_that_counts_as_running_is_told(tmp_path: Path, status: Json) -> None:
    """Only a cluster knows whether it is true; one that describes a cluster says nothing else."""
    pod = running("w", EXPORTED, "1", **status)
    code, told = simulate(tmp_path, json.dumps(pod))
    assert (code, "counts as running there, and is not validated" in told) == (0, True), told
    described = write(tmp_path, CLUSTER + "---\n" + json.dumps(pod), "described.yaml")
    found = run.invoke(app, ["simulate", "--cluster", described])
    assert (found.exit_code, found.stderr) == (0, "")


@pytest.mark.parametrize("kind", ["Node", "Cluster"])
def test_only_files_of_the_cluster_say_which_nodes_there_are(tmp_path: Path, kind: str) -> None:
    large = changed(POD, "spec.containers.0.resources", {"requests": {"cpu": 1_000}})
    node: Json = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "b"}}
    node["status"] = {"allocatable": {"cpu": 2_000, "pods": 10}}
    cluster = {"apiVersion": "gputile.io/v1alpha1", "kind": "Cluster", "nodes": [{"name": "b", "cpu": 2_000}]}
    text = "\n".join(map(json.dumps, (large, node if kind == "Node" else cluster)))
    code, told = simulate(tmp_path, text)
    assert code == (3 if kind == "Node" else 2)
    assert ("it makes no room" if kind == "Node" else "name its file by --cluster") in told


@pytest.mark.parametrize(("scheduler", "noted"), [("ours", False), ("other", True)])
def test_another_scheduler_is_believed_to_decide_alike(tmp_path: Path, scheduler: str, noted: bool) -> None:
    manifests = load_text(tmp_path, json.dumps(changed(POD, "spec.schedulerName", scheduler)))
    notes = expand(manifests, [], Intake(Admission(Configuration(scheduler_name="ours")))).notes
    said = "spec.schedulerName: it is assumed that other decides as kube-scheduler and calls gputile's extender"
    assert [note.text for note in notes] == [said] * noted
