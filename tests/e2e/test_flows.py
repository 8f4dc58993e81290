"""The documents' procedures, as the pages of docs/tasks tell them: every command is executed.

Helm installs the configuration and the agents, whose pods nobody runs: they are played with the agent's own decisions
(see ``playedagents.py``), since there is no GPU. All other components run as processes.
"""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from gputile.api.config.v1alpha1 import load_configuration
from tests.chart.helmcli import CHART, helm, settings
from tests.e2e.extender import pods_in, write_cluster
from tests.e2e.playedagents import PlayedAgents
from tests.e2e.walkthrough import steps_of, walk
from tests.localcluster.admission import RunningWebhook, installed
from tests.localcluster.controlplane import ControlPlane
from tests.localcluster.gputile import (
    MANAGED,
    WEIGHT,
    configuration_file,
    described_nodes,
    start_controller,
    start_extender,
    write_configuration,
)

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
OWN_PROCESSES = {"scheduler.mode": "own", "policies.enabled": False, "features.batch": False} | {
    f"{component}.enabled": False for component in ("scheduler", "controller", "webhook")
}


def described() -> str:
    """Return the cluster that the pages' commands are shown on."""
    match = re.search(r"^```yaml\n(.*?)^```$", (TASKS / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert match
    return "\n".join(match[1].splitlines()[2:])


class Release:
    """gputile's release, as Helm installs it, and the processes that follow its configuration."""

    def __init__(self, plane: ControlPlane, webhook: RunningWebhook) -> None:
        self.plane, self.webhook = plane, webhook

    def helm(self, verb: str, *arguments: str | Path) -> None:
        helm(verb, *arguments, f"--kubeconfig={self.plane.kubeconfig()}", "--namespace=gputile")

    def _get(self, path: str) -> Any:
        return self.plane.api.get(path.replace("*", "namespaces/gputile"))

    def _configuration(self) -> str:
        text: str = self._get("/api/v1/*/configmaps/gputile")["data"]["configuration.yaml"]
        return text

    def unit_mib(self) -> int:
        """Return the memory unit in the ConfigMap."""
        return load_configuration(yaml.safe_load(self._configuration())).unit_mib

    def runs_mps(self) -> bool:
        """Return whether the agents' pods may run MPS control daemons: these share the host's IPC namespace."""
        spec = self._get("/apis/apps/v1/*/daemonsets/gputile-agent")["spec"]["template"]["spec"]
        return bool(spec.get("hostIPC"))

    def follow(self) -> None:
        """Write the ConfigMap into the processes' files, as kubelets do, and wait until the webhook has read its own.

        A pod that came before would be stamped with the unit of before.
        """
        document = yaml.safe_load(self._configuration())
        del document["admission"]["trustedUsers"]  # of the pods; these processes have the accounts of the examples
        for name in ("extender", "controller", "webhook"):
            write_configuration(configuration_file(self.plane, name), document)
        unit = self.unit_mib()
        said = "gputile_webhook_memory_unit_mib"
        self.plane.wait(lambda: self.webhook.metric(said) == unit, f"the webhook to stamp {unit} MiB")


@pytest.fixture(scope="module")
def release(
    control_plane: ControlPlane, helm_programs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Release]:
    """gputile on the pages' cluster."""
    plane = control_plane
    with ExitStack() as stack:
        stack.callback(plane.nodes.delete_all_nodes)
        plane.nodes.create_nodes(described_nodes(write_cluster(tmp_path_factory.mktemp("flows"), described())))
        found = Release(plane, stack.enter_context(installed(plane)))
        found.helm("install", "gputile", CHART, "--take-ownership", *settings(OWN_PROCESSES))
        stack.callback(found.helm, "uninstall", "gputile")
        extender, url = start_extender(plane)
        stack.enter_context(extender)
        stack.enter_context(start_controller(plane)[0])
        options = {"bind": True, "preempt": True, "managed_resources": MANAGED, "weight": WEIGHT}
        stack.enter_context(plane.start_scheduler(url, **options))  # type: ignore[arg-type]
        found.follow()
        stack.enter_context(PlayedAgents(plane.api, found.unit_mib, mps=found.runs_mps))
        yield found


@pytest.fixture
def tidy(release: Release) -> Iterator[None]:
    """Leave nothing of a page behind."""
    yield
    plane = release.plane
    plane.kubectl("delete", "deployment,statefulset,job,pod", "--all", "-n", NAMESPACE, "--wait=false")

    def empty() -> bool:
        plane.nodes.delete_all_pods_now(NAMESPACE)
        return not pods_in(plane, NAMESPACE)

    plane.wait(empty, "the namespace to be empty")
    for node in ("gpu-1", "gpu-2", "gpu-3"):
        plane.nodes.label(node, {"ack.node.gpu.schedule": None, "ack.node.gpu.placement": None})
    if release.unit_mib() != 1024:
        release.helm("upgrade", "gputile", CHART, "--reset-then-reuse-values", "--set=gpuMemoryUnit=1GiB")
        release.follow()


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.usefixtures("tidy")
def test_every_command_of_the_page_does_what_the_page_shows(
    release: Release, helm_programs: dict[str, Path], page: str, tmp_path: Path
) -> None:
    plane = release.plane
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, program in (("kubectl", plane.programs["kubectl"]), ("helm", helm_programs["helm"])):
        (programs / name).symlink_to(program)
    environment = {
        "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "KUBECONFIG": str(plane.kubeconfig()),
        "HOME": str(tmp_path),
    }
    walk(TASKS / page, environment, ROOT, lambda command: release.follow() if command.startswith("helm ") else None)


def test_every_page_is_in_the_list() -> None:
    index = (TASKS / "README.md").read_text()
    assert all(f"({page})" in index for page in PAGES)
    assert all(steps_of(TASKS / page) for page in PAGES)
