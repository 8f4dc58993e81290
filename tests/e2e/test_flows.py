"""The documents' procedures, as the pages of docs/tasks tell them: every command is executed.

gputile is installed by Helm and runs as processes (see ``installation.py``); the nodes' agents are played with the
agent's own decisions (see ``playedagents.py``), since there is no GPU.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.extender import pods_in, write_cluster
from tests.e2e.installation import GPUTILE, Installation
from tests.e2e.playedagents import PlayedAgents
from tests.e2e.walkthrough import steps_of, walk
from tests.localcluster.controlplane import ControlPlane
from tests.localcluster.gputile import described_nodes

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.requirement(
        "U2", "U3", "U5", "U9", "U10", "M1", "M2", "M3", "M4", "M5", "M6", "M9", "M12", "V1", "V2", "C2", "C3", "G7",
        "L3", "L4", "L5",
    ),
]  # fmt: skip

ROOT = Path(__file__).resolve().parents[2]
TASKS = ROOT / "docs" / "tasks"
PAGES = sorted(page.name for page in TASKS.glob("*.md") if page.name != "README.md")
NAMESPACE = "default"


def described() -> str:
    """Return the cluster that the pages' commands are shown on."""
    match = re.search(r"^```yaml\n(.*?)^```$", (TASKS / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert match
    return "\n".join(match[1].splitlines()[2:])


@pytest.fixture(scope="module")
def installed(
    control_plane: ControlPlane, helm_programs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    """gputile, installed as the pages say, on their cluster; the release is called gputile there."""
    control_plane.nodes.create_nodes(described_nodes(write_cluster(tmp_path_factory.mktemp("flows"), described())))
    scheduler = control_plane.start_scheduler(name="flows-default-scheduler")
    installation = Installation(control_plane, "gputile", "gputile")
    _clear(control_plane)
    installation.install({})
    try:
        for component in ("scheduler", "webhook", "controller"):
            control_plane.wait(lambda c=component: bool(installation.pods_of(c)), f"the pods of {component}")  # type: ignore[misc]
        installation.run_scheduler()
        installation.run_controller()
        installation.run_webhook()
        with PlayedAgents(control_plane.api, installation.unit_mib, mps=lambda: runs_mps(installation)):
            yield installation
    finally:
        installation.stop()
        installation.uninstall()
        scheduler.stop()
        control_plane.nodes.delete_all_nodes()


def runs_mps(installation: Installation) -> bool:
    """Return whether the agents' pods may run MPS control daemons: these share the host's IPC namespace."""
    daemons = installation.get("apps/v1/daemonsets/gputile-agent")["spec"]["template"]["spec"]
    return bool(daemons.get("hostIPC"))


def _clear(plane: ControlPlane) -> None:
    """Remove what other tests have applied of the examples: Helm takes nothing over that it did not make."""
    kinds = "clusterrole,clusterrolebinding,validatingadmissionpolicy,validatingadmissionpolicybinding"
    hooks = "mutatingwebhookconfiguration,validatingwebhookconfiguration"
    found = plane.kubectl("get", f"{kinds},{hooks}", "-o", "name").split()
    left = [name for name in found if name.partition("/")[2].startswith("gputile")]
    if left:
        plane.kubectl("delete", *left)
    plane.kubectl("delete", "role,rolebinding,serviceaccount,secret", "--all", "-n", "gputile", "--ignore-not-found")


@pytest.fixture
def tidy(installed: Installation) -> Iterator[None]:
    """Leave nothing of a page behind."""
    yield
    plane = installed.plane
    plane.kubectl("delete", "deployment,statefulset,job,pod", "--all", "-n", NAMESPACE, "--wait=false")

    def empty() -> bool:
        plane.nodes.delete_all_pods_now(NAMESPACE)
        return not pods_in(plane, NAMESPACE)

    plane.wait(empty, "the namespace to be empty")
    for node in ("gpu-1", "gpu-2", "gpu-3"):
        plane.nodes.label(node, {"ack.node.gpu.schedule": None, "ack.node.gpu.placement": None})
    if installed.unit_mib() != 1024:
        installed.upgrade({"gpuMemoryUnit": "1GiB"})
        installed.wait_followed()


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.usefixtures("tidy")
def test_every_command_of_the_page_does_what_the_page_shows(
    installed: Installation, helm_programs: dict[str, Path], page: str, tmp_path: Path
) -> None:
    plane = installed.plane
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, program in (("kubectl", plane.programs["kubectl"]), ("helm", helm_programs["helm"])):
        (programs / name).symlink_to(program)
    environment = {
        "PATH": f"{programs}:{GPUTILE.parent}:{os.environ['PATH']}",
        "KUBECONFIG": str(plane.kubeconfig()),
        "HOME": str(tmp_path),
    }
    elsewhere: list[int | None] = []

    def around(command: str) -> None:
        """Helm finds its objects as it left them, and the files follow, as the kubelet does it some time later."""
        if command.startswith("helm upgrade"):
            elsewhere.append(installed.lead_webhooks_to(None))
        elif not command and elsewhere:
            installed.lead_webhooks_to(elsewhere.pop())
            installed.mount()
            installed.wait_followed()

    walk(TASKS / page, environment, ROOT, around)
    for process in installed.processes:
        process.check()


def test_every_page_is_in_the_list() -> None:
    index = (TASKS / "README.md").read_text()
    assert all(f"({page})" in index for page in PAGES)
    assert all(steps_of(TASKS / page) for page in PAGES)
