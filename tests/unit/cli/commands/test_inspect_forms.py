"""``gputile inspect``: the documents' table unless something else is asked for."""

import msgspec
import pytest
from typer.testing import CliRunner

from gputile.api.core import Node, OwnerReference, Pod
from gputile.api.well_known import ALLOCATION_ANNOTATION
from gputile.cli.app import app
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.corebuilders import allocation_text, gpu_node, pod, share

pytestmark = pytest.mark.requirement("V2", "V3")

run = CliRunner()
GIB = 1024


def put(server: FakeApiServer, *objects: Node | Pod) -> None:
    for each in objects:
        kind = "nodes" if isinstance(each, Node) else "pods"
        server.store[f"/api/v1/{kind}"][each.metadata.name] = msgspec.to_builtins(each)


def held(name: str, gpu: int, gib: int, namespace: str = "default") -> Pod:
    """Return a pod of a Deployment's ReplicaSet that holds memory of a GPU."""
    text = allocation_text(share(f"GPU-n-{gpu}", gib * GIB))
    found = pod(name, mem=gib, node="n", namespace=namespace, annotations={ALLOCATION_ANNOTATION: text})
    owner = OwnerReference(kind="ReplicaSet", name="web-5d4f", uid="u", controller=True)
    labels = {"pod-template-hash": "5d4f"}
    meta = msgspec.structs.replace(found.metadata, owner_references=(owner,), labels=labels)
    return msgspec.structs.replace(found, metadata=meta)


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
    put(server, held("web-5d4f-c", 1, 5, "chat"))
    result = run.invoke(app, [*command, "-o", "bars", "--ascii"], env={"COLUMNS": "60"})
    assert result.stdout.isascii()
    assert result.stdout.splitlines()[-1] == "A chat  B default  . free"
