"""The chart on a real API server: every object is accepted, and its DaemonSet keeps an agent on each node."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart.helmcli import CHART, helm, settings
from tests.e2e.installation import Installation, settle
from tests.localcluster.controlplane import ControlPlane

pytestmark = [pytest.mark.timeout(900), pytest.mark.requirement("U2", "U10", "M13")]


@pytest.mark.parametrize(
    "values",
    [
        {},
        {
            "scheduler.mode": "own",
            "networkPolicies.enabled": True,
            "networkPolicies.metricsFrom": [{"podSelector": {}}],
        },
        {"agent.mps": True, "agent.cdiDir": "/var/run/cdi", "agent.driverDir": "/opt/nvidia", "agent.affinity": {}},
        {"features": {"sharing": False, "topology": False, "batch": False}, "podDisruptionBudgets.enabled": False},
    ],
    ids=["defaults", "own", "agent", "little"],
)
def test_the_api_server_accepts_every_object(
    control_plane: ControlPlane, helm_programs: dict[str, Path], namespace: str, values: dict[str, Any]
) -> None:
    """Server-side: the schema, the defaults and the CEL of every object are checked, and nothing is stored."""
    rendered = helm("template", "dry", CHART, f"--namespace={namespace}", "--kube-version=v1.36.2", *settings(values))
    answer = control_plane.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", input=rendered)
    assert answer.count("created (server dry run)") == sum(bool(d) for d in yaml.safe_load_all(rendered))


@pytest.fixture
def agents_alone(control_plane: ControlPlane, helm_programs: dict[str, Path], no_nodes: None) -> Iterator[Installation]:
    """A release that has nothing but agents, whose pods no kubelet runs."""
    installation = Installation(control_plane, "agents", "agents-system")
    parts = ("webhook.enabled", "controller.enabled", "scheduler.enabled", "features.batch", "policies.enabled")
    installation.install(dict.fromkeys(parts, False))
    yield installation
    installation.uninstall()


def agents(installation: Installation) -> dict[str, str]:
    """Return the UIDs of the agents' pods that are to stay, by node."""
    there = [pod for pod in installation.pods_of("agent") if not pod["metadata"].get("deletionTimestamp")]
    return {_node_of(pod): pod["metadata"]["uid"] for pod in there}


def _node_of(pod: dict[str, Any]) -> str:
    """Return the node that the DaemonSet controller made a pod for: no scheduler runs here."""
    required = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    node: str = required["nodeSelectorTerms"][0]["matchFields"][0]["values"][0]
    return node


@pytest.mark.requirement("M1", "M3", "M12")
def test_an_agent_stays_whatever_labels_come_and_go(agents_alone: Installation) -> None:
    """The DaemonSet controller's own decision; a node without any label of GPUs has an agent too."""
    plane, nodes = agents_alone.plane, agents_alone.plane.nodes
    nodes.create_node("gpus", labels={"ack.node.gpu.schedule": "share"})
    nodes.create_node("plain")
    plane.wait(lambda: agents(agents_alone).keys() == {"gpus", "plain"}, "an agent on each node")
    before = agents(agents_alone)
    nodes.label("gpus", {"ack.node.gpu.schedule": None})
    nodes.create_node("virtual", labels={"type": "virtual-kubelet"})
    nodes.create_node("late")
    plane.wait(lambda: "late" in agents(agents_alone), "an agent on the node that has just joined")
    settle(5)
    assert {name: uid for name, uid in agents(agents_alone).items() if name != "late"} == before
