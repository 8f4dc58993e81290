"""``gputile simulate --from-cluster`` knows the PodGroups of the live cluster, and says where it does not."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from gputile.api.well_known import POD_GROUP_LABEL
from gputile.api.workloads import POD_GROUPS_PATH
from gputile.cli.app import app
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.livecluster import machine, put

pytestmark = pytest.mark.requirement("B4", "M13")

run = CliRunner()
UNKNOWN = "the cluster's PodGroups are unknown (GET /apis/scheduling.x-k8s.io/v1alpha1/podgroups"
GROUP = """---
apiVersion: scheduling.x-k8s.io/v1alpha1
kind: PodGroup
metadata: {name: g}
spec: {minMember: %s}
"""


@pytest.fixture(autouse=True)
def cluster(server: FakeApiServer) -> None:
    """One GPU of 15 units, gangs planned, and the kind PodGroup installed."""
    put(server, machine())
    configuration = {"metadata": {"name": "c"}, "data": {"configuration.yaml": "admission: {gangs: true}"}}
    server.store["/api/v1/namespaces/gputile/configmaps"]["c"] = configuration
    server.kinds["scheduling.x-k8s.io/v1alpha1"] = ["PodGroup"]
    server.store[POD_GROUPS_PATH] = {}


def put_group(server: FakeApiServer, least: Any, namespace: str = "default") -> None:
    group = {"metadata": {"name": "g", "namespace": namespace}, "spec": {"minMember": least}}
    server.store[POD_GROUPS_PATH][f"{namespace}/g"] = group


@pytest.fixture
def gang(tmp_path: Path) -> str:
    """A file of four pods of gang g, three of which fit the GPU."""
    text = ""
    for i in range(4):
        meta = f"{{name: m{i}, labels: {{{POD_GROUP_LABEL}: g}}}}"
        spec = "{containers: [{name: c, image: i, resources: {limits: {aliyun.com/gpu-mem: 4}}}]}"
        text += f"---\napiVersion: v1\nkind: Pod\nmetadata: {meta}\nspec: {spec}\n"
    (tmp_path / "gang.yaml").write_text(text, encoding="utf-8")
    return str(tmp_path / "gang.yaml")


def simulated(kubeconfig: str, *options: str, files: str = "") -> tuple[dict[str, tuple[str | None, str]], str]:
    """Return node and reason of each pod, and what is said on stderr."""
    given = [*options, *(("-f", "-") if files else ())]
    command = ["simulate", "--from-cluster", "--kubeconfig", kubeconfig, "-o", "json", *given]
    result = run.invoke(app, command, input=files)
    assert result.exit_code in (0, 3), result.output
    decisions = msgspec.json.decode(result.stdout)["decisions"]
    return {each["pod"]: (each["node"], each["reason"]) for each in decisions}, result.stderr


def placed(found: dict[str, tuple[str | None, str]]) -> int:
    return sum(node is not None for node, _ in found.values())


@pytest.mark.parametrize(
    ("live", "file", "fitting", "why"),
    [
        (3, None, 3, "gang g: 3 pods that start together; "),
        (4, None, 0, "gang g: 4 pods that start together wait: there is room for 3; "),
        (4, 2, 3, "gang g: 2 pods that start together; "),
        (2, 4, 0, "gang g: 4 pods that start together wait: there is room for 3; "),
        (5, None, 0, "gang g: 4 of the 5 pods that start together exist"),
        (0, None, 0, "gang g: PodGroup default/g is neither in the cluster nor in the files, or its spec.minMember"),
    ],
)
def test_the_clusters_pod_groups_count_and_those_of_files_before_them(
    server: FakeApiServer, kubeconfig: str, gang: str, live: int, file: int | None, fitting: int, why: str
) -> None:
    put_group(server, live)
    put_group(server, 1, namespace="other")
    found, said = simulated(kubeconfig, "-f", gang, files=GROUP % file if file is not None else "")
    assert (placed(found), said) == (fitting, "")
    assert found["m0"][1].startswith(why)


@pytest.mark.parametrize("least", ["3", 1.5])
def test_a_pod_group_that_cannot_be_read_is_named_and_stops_no_other(
    server: FakeApiServer, kubeconfig: str, gang: str, least: Any
) -> None:
    put_group(server, least)
    found, said = simulated(kubeconfig, "-f", gang)
    assert (placed(found), said) == (0, "")
    assert found["m0"][1].startswith(
        "gang g: the cluster's PodGroup default/g: spec.minMember: must be a whole number, is "
    )
    found, _ = simulated(kubeconfig, "-f", gang, files=GROUP % 3)
    assert placed(found) == 3


def test_without_the_kind_nothing_is_said_and_files_count(server: FakeApiServer, kubeconfig: str, gang: str) -> None:
    del server.store[POD_GROUPS_PATH]
    found, said = simulated(kubeconfig, "-f", gang)
    assert (placed(found), said) == (0, "")
    assert found["m0"][1].startswith("gang g: PodGroup default/g is in none of the files")
    assert placed(simulated(kubeconfig, "-f", gang, files=GROUP % 3)[0]) == 3


def test_a_reader_who_may_not_list_pod_groups_is_told_what_is_assumed(
    server: FakeApiServer, kubeconfig: str, gang: str
) -> None:
    put_group(server, 3)
    server.refused[POD_GROUPS_PATH] = 403, "Forbidden"
    found, said = simulated(kubeconfig, "-f", gang)
    assert placed(found) == 0
    assert found["m0"][1].startswith("gang g: PodGroup default/g is in none of the files")
    assert said.startswith(f"note: {UNKNOWN}")
    assert "). Assumed: the only PodGroups are those in -f FILE\n" in said
    assert f"(GET {POD_GROUPS_PATH}?limit=500: 403 Forbidden; " in said
    assert placed(simulated(kubeconfig, "-f", gang, files=GROUP % 3)[0]) == 3
