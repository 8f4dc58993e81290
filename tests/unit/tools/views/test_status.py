"""``gputile status``: Deploying, then Deployed only when every component is ready; a failure names it."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputile.api.core import Node
from gputile.api.workloads import DaemonSet, Deployment, Event, RunningPod
from gputile.core.devices.inventory import Gpu, Inventory, encode_inventory
from gputile.tools.views.rollout import RolloutState
from gputile.tools.views.status import Installation, RolloutPhase, Traces, assess, table, with_traces

pytestmark = pytest.mark.requirement("U11")

LABELS = {"app.kubernetes.io/name": "gputile", "app.kubernetes.io/instance": "gputile"}


def labels(component: str) -> dict[str, str]:
    return {**LABELS, "app.kubernetes.io/component": component}


def deployment(component: str = "webhook", wanted: int = 2, **status: Any) -> Deployment:
    full = {"observedGeneration": 1, "replicas": wanted, "updatedReplicas": wanted, "availableReplicas": wanted}
    body = {
        "metadata": {"name": f"gputile-{component}", "labels": labels(component), "generation": 1},
        "spec": {"replicas": wanted},
        "status": {**full, **status},
    }
    return msgspec.convert(body, Deployment)


def daemon_set(wanted: int = 3, **status: Any) -> DaemonSet:
    full = {
        "observedGeneration": 1,
        "desiredNumberScheduled": wanted,
        "updatedNumberScheduled": wanted,
        "numberAvailable": wanted,
    }
    body = {
        "metadata": {"name": "gputile-agent", "labels": labels("agent"), "generation": 1},
        "status": {**full, **status},
    }
    return msgspec.convert(body, DaemonSet)


def pod(component: str = "webhook", name: str = "p", node: str = "", **status: Any) -> RunningPod:
    body = {"metadata": {"name": name, "labels": labels(component)}, "spec": {"nodeName": node}, "status": status}
    return msgspec.convert(body, RunningPod)


def event(about: str, reason: str, message: str, when: str = "2026-01-01T00:00:00Z") -> Event:
    body = {
        "involvedObject": {"name": about},
        "type": "Warning",
        "reason": reason,
        "message": message,
        "lastTimestamp": when,
    }
    return msgspec.convert(body, Event)


def condition(kind: str, status: str, reason: str = "", message: str = "") -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": message}


def the_only(installation: Installation) -> tuple[RolloutState, str]:
    (component,) = installation.components
    return component.state, component.reason


def test_deployed_when_every_component_is_ready() -> None:
    installation = assess([deployment(), deployment("controller", 1), daemon_set()], [], [], [], 1024)
    assert installation.phase is RolloutPhase.DEPLOYED
    assert [(c.name, c.ready, c.wanted) for c in installation.components] == [
        ("agent", 3, 3),
        ("controller", 1, 1),
        ("webhook", 2, 2),
    ]


def test_a_deployment_that_is_scaled_to_nothing_is_not_deployed() -> None:
    """As by kubectl: the chart has one pod at least of each. GPU pods are refused while no webhook answers."""
    (component,) = assess([deployment(wanted=0)], [], [], [], 1024).components
    assert (component.state, component.reason) == (RolloutState.DEPLOYING, "it is scaled to 0 pods")
    assert "kubectl scale" in component.remedy


def test_a_daemon_set_that_no_node_is_for_says_so() -> None:
    """Without nodes for its agent a cluster can be as it should be, and without any for its scheduler it cannot."""
    (agent,) = assess([daemon_set(0)], [], [], [], 1024).components
    assert (agent.state, agent.reason.partition(":")[0]) == (RolloutState.READY, "no node matches")
    assert "nodeSelector" in agent.remedy
    scheduler = daemon_set(0)
    scheduler.metadata.labels.update(labels("scheduler"))
    assert the_only(assess([scheduler], [], [], [], 1024))[0] is RolloutState.DEPLOYING


def test_what_there_is_without_components_is_said() -> None:
    """As of components that run outside of the cluster."""
    told = table(assess([], [], [], [node("a", Inventory(gpus=()))], 128))
    assert told.startswith(
        "gputile: NotInstalled\n\nThis namespace has no Deployments and DaemonSets of gputile, but its configuration"
    )
    assert "1 node has an agent's report. It may run in another namespace (--installed-in)" in told


def test_programs_outside_of_pods_are_a_state_of_their_own() -> None:
    """As `make cluster` runs them. Nothing in a cluster says whether a program is ready, so this is not Deployed.

    A webhook configuration alone may have been left behind.
    """
    seen = ["controller holds the Lease gputile-controller"]
    installation = with_traces(
        assess([], [], [], [node("a", Inventory(gpus=()))], 128), Traces(here=seen, running=True)
    )
    assert installation.phase is RolloutPhase.OUTSIDE_OF_PODS
    assert installation.traces == seen
    told = table(installation)
    assert told.startswith("gputile: OutsideOfPods\n\nThis namespace has no Deployments and DaemonSets")
    assert "its configuration exists, 1 node has an agent's report and controller holds the Lease" in told
    assert "gputile runs outside of pods" in told
    assert told.splitlines()[-1].split() == ["a", "-", "-", "-", "0"], "whether an agent runs there is not known"
    assert "/readyz" in told
    left = with_traces(assess([], [], [], [], 0), Traces(here=["the webhook configuration gputile exists"]))
    assert table(left).startswith(
        "gputile: NotInstalled\n\nThis namespace has no Deployments and DaemonSets of gputile, but the webhook"
    )


def test_where_it_is_installed_instead_is_said() -> None:
    installation = with_traces(assess([], [], [], [], 0), Traces(elsewhere=["gpu-sharing"]))
    assert (installation.phase, installation.traces) == (RolloutPhase.NOT_INSTALLED, [])
    assert "Its webhook is in the namespace gpu-sharing (--installed-in gpu-sharing)" in table(installation)


@pytest.mark.parametrize(
    "workload",
    [
        daemon_set(numberAvailable=2),
        daemon_set(updatedNumberScheduled=2),
        daemon_set(observedGeneration=0),
    ],
)
def test_deploying_while_one_component_is_not_ready(workload: Deployment | DaemonSet) -> None:
    """An old pod that is still there, or a spec that nobody has looked at yet, is not deployed either."""
    installation = assess([workload, deployment("controller")], [], [], [], 1024)
    assert installation.phase is RolloutPhase.DEPLOYING
    assert table(installation).startswith(
        f"gputile: Deploying: {workload.metadata.labels['app.kubernetes.io/component']}"
    )


WAITING = {"name": "webhook", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
STARTING = {"name": "webhook", "state": {"waiting": {"reason": "PodInitializing"}}}
CRASHED = {
    "name": "webhook",
    "state": {"waiting": {"reason": "CrashLoopBackOff"}},
    "lastState": {"terminated": {"exitCode": 2}},
}


def ended(code: int, reason: str) -> dict[str, object]:
    return {"lastState": {"terminated": {"exitCode": code, "reason": reason}}}


@pytest.mark.parametrize(
    ("pods", "events", "conditions", "state", "reason"),
    [
        (
            [pod(containerStatuses=[WAITING])],
            [
                event("p", "FailedToRetrieveImagePullSecret", "no regcred"),
                event("p", "Failed", "x", "2026-02-01T00:00:00Z"),
            ],
            [],
            RolloutState.FAILED,
            "pod p: container webhook: ImagePullBackOff: no such image; FailedToRetrieveImagePullSecret: no regcred",
        ),
        (
            [pod(initContainerStatuses=[CRASHED | {"name": "mesh"}], containerStatuses=[STARTING])],
            [],
            [],
            RolloutState.FAILED,
            "pod p: container mesh: CrashLoopBackOff; it ended with exit code 2",
        ),
        (
            [pod(containerStatuses=[CRASHED | ended(137, "OOMKilled")])],
            [],
            [],
            RolloutState.FAILED,
            "pod p: container webhook: CrashLoopBackOff; it ended with exit code 137 (OOMKilled)",
        ),
        (
            [pod(conditions=[condition("PodScheduled", "False", "Unschedulable", "0/3 nodes are available")])],
            [],
            [],
            RolloutState.DEPLOYING,
            "pod p: Unschedulable: 0/3 nodes are available",
        ),
        (
            [pod()],
            [event("p", "FailedMount", "configmap not found"), event("p", "Old", "x", "2025-01-01T00:00:00Z")],
            [],
            RolloutState.DEPLOYING,
            "pod p: FailedMount: configmap not found",
        ),
        (
            [],
            [],
            [condition("Progressing", "False", "ProgressDeadlineExceeded", "has timed out")],
            RolloutState.FAILED,
            "ProgressDeadlineExceeded: has timed out",
        ),
        ([], [], [], RolloutState.DEPLOYING, "its pods are starting"),
    ],
)
def test_what_is_in_the_way_is_told_in_the_clusters_own_words(
    pods: list[RunningPod], events: list[Event], conditions: list[dict[str, str]], state: RolloutState, reason: str
) -> None:
    installation = assess([deployment(availableReplicas=0, conditions=conditions)], pods, events, [], 1024)
    assert the_only(installation) == (state, reason)
    assert installation.phase is (RolloutPhase.FAILED if state is RolloutState.FAILED else RolloutPhase.DEPLOYING)


EVICTED = pod(name="old", phase="Failed", reason="Evicted", message="the node was low on memory")


@pytest.mark.requirement("U11")
def test_an_evicted_pod_that_has_been_replaced_is_not_in_the_way() -> None:
    """A rollout is healthy whatever pods of a Deployment are left lying about; its other pods still count."""
    rolling = deployment(replicas=3, updatedReplicas=1)
    new = pod(name="new", phase="Running", conditions=[condition("Ready", "True")])
    installation = assess([rolling], [EVICTED, new], [], [], 1024)
    assert the_only(installation) == (RolloutState.DEPLOYING, "1 of 2 pods are updated")
    crashing = pod(name="crashing", phase="Running", containerStatuses=[CRASHED])
    state, reason = the_only(assess([rolling], [EVICTED, crashing], [], [], 1024))
    assert (state, reason.partition(":")[0]) == (RolloutState.FAILED, "pod crashing")


@pytest.mark.requirement("U11")
@pytest.mark.parametrize("order", [1, -1])
def test_a_nodes_agent_is_ready_while_its_successor_starts(order: int) -> None:
    """The new agent registers before the old one ends, so that a node has two for a while."""
    old = pod("agent", "old", "a", conditions=[condition("Ready", "True")])
    new = pod("agent", "new", "a", conditions=[condition("Ready", "False")])
    installation = assess([daemon_set()], [old, new][::order], [], [node("a", Inventory(gpus=()))], 1024)
    assert [each.agent_ready for each in installation.nodes] == [True]


SLOW = pod("agent", "slow", conditions=[condition("Ready", "False", "ContainersNotReady", "its node is lost")])
FORBIDDEN = event(
    "gputile-agent", "FailedCreate", 'pods "gputile-agent-x" is forbidden: violates PodSecurity', "2026-01-01T00:09:00Z"
)


def test_a_pod_that_is_not_ready_hides_no_pods_that_must_not_be_created() -> None:
    (component,) = assess(
        [daemon_set(numberAvailable=0, updatedNumberScheduled=1)], [SLOW], [FORBIDDEN], [], 1024
    ).components
    assert component.state is RolloutState.FAILED
    assert "violates PodSecurity" in component.reason
    assert "enforce=privileged" in component.remedy


def test_pods_that_could_not_be_created_once_and_are_there_now_are_no_failure() -> None:
    """An Event stays for an hour, as after somebody has labelled the namespace or raised the quota."""
    workload = daemon_set(1, numberAvailable=0)
    assert the_only(assess([workload], [SLOW], [FORBIDDEN], [], 1024))[1].startswith("pod slow: ContainersNotReady")
    upgraded = daemon_set(3, updatedNumberScheduled=1)
    since = msgspec.convert(
        {"metadata": {"name": "s", "labels": labels("agent"), "creationTimestamp": "2026-01-01T00:10:00Z"}}, RunningPod
    )
    assert the_only(assess([upgraded], [SLOW, since], [FORBIDDEN], [], 1024))[0] is RolloutState.DEPLOYING


def node(name: str, inventory: Inventory | None = None, *conditions: dict[str, str]) -> Node:
    annotations = {"gputile.io/inventory": encode_inventory(inventory)} if inventory else {}
    body = {"metadata": {"name": name, "annotations": annotations}, "status": {"conditions": list(conditions)}}
    return msgspec.convert(body, Node)


@pytest.mark.requirement("U9", "M12")
def test_nodes_tell_mode_unit_and_what_holds_them() -> None:
    """The unit in force on each node, and a held change with its pods."""
    gpus = (Gpu(index=0, uuid="GPU-0", mib=15360, model="Tesla T4"),)
    held = condition("gputile.io/ModePending", "True", "PodsOnNode", "mode share stays in force: default/p")
    nodes = [
        node("b", Inventory(gpus=gpus, mode="share", unit_mib=1024), held, condition("Ready", "True")),
        node("a", Inventory(gpus=gpus, mode="cgpu", unit_mib=128), condition("gputile.io/CardProblem", "False")),
        node("silent"),
        node("plain"),
    ]
    agents = [
        pod("agent", "x", "a", conditions=[condition("Ready", "True")]),
        pod("agent", "y", "silent", conditions=[condition("Ready", "False")]),
        pod("agent", "z", "b", conditions=[condition("Ready", "False")]),
    ]
    installation = assess([daemon_set()], agents, [], nodes, 128)
    assert [(n.name, n.agent_ready, n.mode, n.unit_mib, n.gpus) for n in installation.nodes] == [
        ("a", True, "cgpu", 128, 1),
        ("b", False, "share", 1024, 1),
        ("silent", False, "", 0, 0),
    ]
    assert installation.nodes[0].problems == []
    assert installation.nodes[1].problems == ["PodsOnNode: mode share stays in force: default/p"]
    text = table(installation)
    assert "The memory unit is 128MiB; 1 node still has another one." in text
    assert [line.split()[:4] for line in text.splitlines() if line.startswith("b ")] == [["b", "not", "ready", "share"]]


@pytest.mark.requirement("M1", "M3", "U11")
def test_an_agent_that_rests_is_no_failure() -> None:
    """A pod on each node, and on nodes without GPUs it only waits for one."""
    ready = [condition("Ready", "True")]
    agents = [pod("agent", f"agent-{name}", name, conditions=ready) for name in ("gpu", "cpu", "labelled", "sliced")]
    gpus = (Gpu(index=0, uuid="GPU-0", mib=15360),)
    nodes = [
        node("gpu", Inventory(gpus=gpus, mode="cgpu", unit_mib=1024)),
        node("cpu", None, condition("Ready", "True")),
        node("labelled", None, condition("gputile.io/AgentSilent", "True", "NoAgent", "it rests")),
        node("sliced", None, condition("gputile.io/ModePending", "False", "ModeInForce")),
    ]
    installation = assess([daemon_set(4)], agents, [], nodes, 1024)
    assert installation.phase is RolloutPhase.DEPLOYED
    assert [(n.name, n.problems[:1]) for n in installation.nodes] == [
        ("gpu", []),
        ("labelled", ["NoAgent: it rests"]),
        ("sliced", []),
    ]
    assert installation.resting == 2
    assert "2 nodes have no GPU, and their agents rest." in table(installation)


@pytest.mark.requirement("U11")
def test_what_an_agent_left_behind_is_not_waited_for() -> None:
    """After an agent has left for good nobody takes over a new unit there."""
    gpus = (Gpu(index=0, uuid="GPU-0", mib=15360),)
    nodes = [node("left", Inventory(gpus=gpus, mode="cgpu", unit_mib=1024))]
    installation = assess([daemon_set(0)], [], [], nodes, 128)
    assert [(n.name, n.agent_there, n.unit_mib) for n in installation.nodes] == [("left", False, 1024)]
    text = table(installation)
    assert "another one" not in text
    assert "no agent runs there; this is the last report" in text
    assert [line.split()[:2] for line in text.splitlines() if line.startswith("left")] == [["left", "none"]]


@given(st.integers(0, 5), st.integers(0, 5), st.integers(0, 5), st.integers(0, 5), st.integers(0, 2))
def test_deployed_means_that_all_wanted_pods_are_new_and_available(
    wanted: int, there: int, new: int, available: int, observed: int
) -> None:
    workload = deployment(
        wanted=wanted, replicas=there, updatedReplicas=new, availableReplicas=available, observedGeneration=observed
    )
    phase = assess([workload], [], [], [], 0).phase
    assert (phase is RolloutPhase.DEPLOYED) == (
        wanted >= 1 and observed >= 1 and new >= wanted and available >= wanted and there <= new
    )
