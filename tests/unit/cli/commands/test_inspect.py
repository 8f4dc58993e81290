"""``gputile inspect``: selectors and namespaces, the documents' table and other forms, and --watch."""

import json
import os
import pty
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gputile.cli.app import app
from tests.conftest import HANGS_S
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.corebuilders import gpu_node
from tests.fakes.livecluster import GIB, held, machine, put
from tests.unit.cli.programs import arguments

pytestmark = pytest.mark.requirement("V2", "V3", "B4")

run = CliRunner()
CLUSTER = """
apiVersion: gputile.io/v1alpha1
kind: Cluster
nodes:
- {name: a, mode: share, labels: {zone: z1}, gpus: {memory: 15GiB}}
- {name: b, mode: cgpu, labels: {zone: z2}, gpus: {memory: 15GiB}}
"""


@pytest.fixture
def files(tmp_path: Path) -> str:
    path = tmp_path / "cluster.yaml"
    path.write_text(CLUSTER, encoding="utf-8")
    return str(path)


def names(*words: str) -> list[str]:
    result = run.invoke(app, ["inspect", "-o", "json", *words])
    assert result.exit_code == 0, result.output
    return [node["name"] for node in json.loads(result.stdout)["nodes"]]


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ([], ["a", "b"]),
        (["-l", "zone=z2"], ["b"]),
        (["-l", "zone in (z1,z2),!other"], ["a", "b"]),
        (["-l", "zone=z3"], []),
        (["--selector", "zone!=z2", "a*"], ["a"]),
    ],
)
def test_a_described_cluster_and_its_selection(files: str, words: list[str], shown: list[str]) -> None:
    assert names("--cluster", files, *words) == shown


@pytest.mark.parametrize("words", [["-l", "zone in"], ["-l", "zone=z1", "b"], ["nobody"]])
def test_no_such_selection_is_an_error(files: str, words: list[str]) -> None:
    assert run.invoke(app, ["inspect", "--cluster", files, *words]).exit_code == 2


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["aa"], 2, "error: no GPU node is named aa; did you mean a?"),
        ([""], 2, "error: no GPU node is named ''"),
        (["-l", "zone=z2", "aa"], 2, "error: no GPU node is named aa"),
        (["-l", "zone=z3"], 0, "note: no GPU node has the labels 'zone=z3'"),
    ],
)
def test_what_is_not_there_is_named(files: str, words: list[str], code: int, said: str) -> None:
    result = run.invoke(app, ["inspect", "--cluster", files, *words])
    assert result.exit_code == code
    assert result.stderr.splitlines()[-1] == said


def test_pods_of_one_namespace_and_amounts_of_all(server: FakeApiServer, kubeconfig: str) -> None:
    put(server, machine(), held("one", 0, 4, "team"), held("two", 0, 4, "other"))
    live = ["inspect", "--kubeconfig", kubeconfig, "-o", "json"]

    def shown(*words: str) -> tuple[list[str], int]:
        (node,) = json.loads(run.invoke(app, [*live, *words]).stdout)["nodes"]
        return [pod["name"] for pod in node["pods"]], node["gpus"][0]["bookedMib"]

    assert shown() == (["two", "one"], 8 * GIB)
    assert shown("-n", "team") == (["one"], 8 * GIB)
    assert shown("-n", "team", "-A") == (["two", "one"], 8 * GIB)


@pytest.mark.parametrize("terminal", [True, False])
def test_watching_shows_what_has_changed_until_an_interrupt(
    server: FakeApiServer, kubeconfig: str, terminal: bool
) -> None:
    put(server, machine(), held("one", 0, 4, "team"))
    ours, theirs = pty.openpty() if terminal else os.pipe()
    command = arguments("main", "inspect", "--watch", "--kubeconfig", kubeconfig)
    said = b""

    def read_until(text: bytes) -> None:
        nonlocal said
        while text not in said:
            said += os.read(ours, 65536)

    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.DEVNULL) as process:
        os.close(theirs)
        read_until(b"4/15 (26%)")
        put(server, held("two", 0, 5, "team"))
        read_until(b"9/15 (60%)")
        process.send_signal(signal.SIGINT)
        assert process.wait(HANGS_S) == -signal.SIGINT
    os.close(ours)
    assert said.count(b"\x1b[2J") == (2 if terminal else 0)
    assert said.count(b"In Cluster:") == 2


def test_workloads_are_in_the_namespace_of_the_context(server: FakeApiServer, kubeconfig: str, tmp_path: Path) -> None:
    """As kubectl apply puts them; -n goes before it."""
    put(server, machine(), held("one", 0, 4, "team"))
    document = Path(kubeconfig).read_text(encoding="utf-8").replace("context:\n", "context:\n    namespace: team\n", 1)
    Path(kubeconfig).write_text(document, encoding="utf-8")
    work: dict[str, Any] = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "w"}}
    work["spec"] = {"containers": [{"name": "c", "image": "i"}]}
    file = tmp_path / "work.json"

    def namespace(*words: str, written: str = "") -> str:
        file.write_text(json.dumps(work | {"metadata": {"name": "w"} | ({"namespace": written} if written else {})}))
        live = ["simulate", "--from-cluster", "--kubeconfig", kubeconfig, "-f", str(file), "-o", "json", *words]
        (decision,) = json.loads(run.invoke(app, live).stdout)["decisions"]
        return str(decision["namespace"])

    assert namespace() == "team"
    assert namespace("-n", "third") == "third"
    assert namespace(written="own") == "own"
    assert run.invoke(app, ["explain", "one", "--kubeconfig", kubeconfig]).exit_code == 0


@pytest.fixture
def command(server: FakeApiServer, kubeconfig: str) -> list[str]:
    put(server, gpu_node("n", mode="share", sizes=[15 * GIB] * 2, unit_mib=GIB))
    put(server, held("web-5d4f-a", 0, 3), held("web-5d4f-b", 0, 6))
    return ["inspect", "--kubeconfig", kubeconfig]


def test_the_table_is_the_documents_whatever_the_terminal(command: list[str]) -> None:
    """Other programs read it: neither the width nor colours change it."""
    found = [run.invoke(app, command, env={"COLUMNS": width, "FORCE_COLOR": "1"}).stdout for width in ("60", "200")]
    assert found[0] == found[1]
    assert found[0].splitlines()[1].split()[-3:] == ["9/15", "0/15", "9/30"]


def test_bars_are_pieces_by_workload_in_one_namespace(command: list[str]) -> None:
    result = run.invoke(app, [*command, "-o", "bars"], env={"COLUMNS": "60"})
    assert result.stdout.splitlines() == [
        "NODE  GPU MEMORY (GiB, used/total)",
        "n     0 A██████████░░░░░░░░ 9/15  1 ░░░░░░░░░░░░░░░░░░░ 0/15",
        "",
        "A deployment/web  ░ free",
    ]


def test_bars_are_pieces_by_namespace_in_several(command: list[str], server: FakeApiServer) -> None:
    put(server, held("web-5d4f-c", 0, 5, "chat"))
    result = run.invoke(app, [*command, "-o", "bars", "--ascii"], env={"COLUMNS": "60"})
    assert result.stdout.isascii()
    assert result.stdout.splitlines()[1::2] == [
        "n     0 [AAAAABBBBBBBBBB.] 14/15  1 [................] 0/15",
        "A chat  B default  . free",
    ]
