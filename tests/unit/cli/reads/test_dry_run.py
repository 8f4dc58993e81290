"""What an API server is asked about manifests, and what is made of its answers."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gputile.cli.app import app
from tests.fakes.apiserver import FakeApiServer
from tests.unit.tools.simulator.builders import CLUSTER, write
from tests.unit.tools.simulator.manifests import DEPLOYMENT, POD, STATEFUL_SET, Json, changed

pytestmark = pytest.mark.requirement("B4")

run = CliRunner()
PODS = "/api/v1/namespaces/default/pods"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
PLAIN = changed(POD, "spec.containers.0.resources", {})
SET = changed(DEPLOYMENT, "spec.template.spec.containers.0.resources", {})
NO_RIGHT = 'pods is forbidden: User "ci" cannot create resource "pods" in API group "" in the namespace "default"'


class Asked:
    """Runs ``gputile simulate`` with an API server that is asked about the objects."""

    def __init__(self, server: FakeApiServer, kubeconfig: str, directory: Path) -> None:
        self.server, self._kubeconfig, self._directory = server, kubeconfig, directory

    def about(self, *bodies: Json, validate: str = "server") -> tuple[int, str]:
        """Return the exit code, and what is said on standard error."""
        files = ["--cluster", write(self._directory, CLUSTER, "c.yaml"), "-f", "-"]
        words = ["simulate", *files, f"--validate={validate}", "--kubeconfig", self._kubeconfig]
        result = run.invoke(app, words, input="\n".join(map(json.dumps, bodies)))
        assert isinstance(result.exception, SystemExit | None), result.exc_info
        return result.exit_code, result.stderr.replace("\n", " ")

    def refusing(self, kind: str, status: int, said: str, details: Any = None) -> None:
        """Have the next request of a ``kind`` refused."""
        body = {"kind": "Status", "status": "Failure", "code": status, "message": said, "details": details}
        self.server.fault(kind, "answer", status=status, body=json.dumps(body).encode())

    def sent(self, method: str) -> list[tuple[str, Json, dict[str, str]]]:
        """Return the requests of a method: path, body and query."""
        return [(each.path, each.json(), each.query) for each in self.server.requests if each.method == method]


@pytest.fixture
def asked(server: FakeApiServer, kubeconfig: str, tmp_path: Path) -> Asked:
    return Asked(server, kubeconfig, tmp_path)


def test_a_new_object_is_created_and_each_template_as_a_pod(asked: Asked) -> None:
    assert asked.about(SET) == (0, "")
    found = {path: (body, query) for path, body, query in asked.sent("POST")}
    assert found.keys() == {DEPLOYMENTS, PODS}
    assert {query["dryRun"] for _, query in found.values()} == {"All"}
    assert {query["fieldValidation"] for _, query in found.values()} == {"Strict"}
    pod, _ = found[PODS]
    assert (pod["metadata"], pod["spec"]) == (
        {"labels": {"app": "x"}, "generateName": "w-"},
        SET["spec"]["template"]["spec"],
    )


def test_an_object_that_is_there_is_applied(asked: Asked) -> None:
    asked.server.store[DEPLOYMENTS] = {"w": SET}
    assert asked.about(changed(SET, "metadata.managedFields", [])) == (0, "")
    ((path, body, query),) = asked.sent("PATCH")
    assert (path, query["force"], query["fieldManager"]) == (f"{DEPLOYMENTS}/w", "true", "kubectl")
    assert "managedFields" not in body["metadata"]
    (request,) = (each for each in asked.server.requests if each.method == "PATCH")
    assert request.headers["content-type"] == "application/apply-patch+yaml"


def test_pods_of_a_set_have_the_volumes_of_its_claims(asked: Asked) -> None:
    claims = [{"metadata": {"name": "data"}}]
    asked.about(changed(STATEFUL_SET, "spec.volumeClaimTemplates", claims))
    (pod,) = (body for path, body, _ in asked.sent("POST") if path == PODS)
    assert pod["spec"]["volumes"] == [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]


@pytest.mark.parametrize(
    ("status", "said", "details", "lines"),
    [
        (403, 'pods "w" is forbidden: exceeded quota: q', None, ["Pod/w: exceeded quota: q"]),
        (422, "odd", {"causes": [1, {}, {"field": "a"}]}, ["Pod/w: odd"]),
        (422, "odd", [], ["Pod/w: odd"]),
        (422, "odd", {"causes": {"a": 1}}, ["Pod/w: odd"]),
    ],
)
def test_causes_are_told_with_their_fields(
    asked: Asked, status: int, said: str, details: Any, lines: list[str]
) -> None:
    asked.refusing("post", status, said, details)
    code, told = asked.about(PLAIN)
    assert (code, [line for line in lines if f"standard input, document 1: {line}" in told]) == (2, lines), told


def test_without_the_right_one_note_says_so(asked: Asked) -> None:
    second = changed(PLAIN, "metadata.name", "v")
    for _ in range(2):
        asked.refusing("post", 403, NO_RIGHT)
    code, told = asked.about(PLAIN, second)
    assert (code, told.count("note: ")) == (0, 1), told
    assert f"and 1 more are not validated by the API server: {NO_RIGHT}" in told
    asked.refusing("post", 403, NO_RIGHT)
    assert asked.about(changed(PLAIN, "spec.nodeSelectr", {}))[0] == 2


def test_the_api_server_knows_its_fields_better(asked: Asked) -> None:
    """It may be newer than the list that ships."""
    assert asked.about(changed(PLAIN, "spec.newer", 1)) == (0, "")


@pytest.mark.parametrize("kind", ["post", "get"])
def test_an_api_server_that_fails_is_no_verdict(asked: Asked, kind: str) -> None:
    for _ in range(10):
        asked.refusing(kind, 500, "etcd is away")
    code, told = asked.about(PLAIN)
    assert (code, "cannot read the cluster: " in told) == (1, True), told
