"""Assesses the installation as a whole, and lists the mode and unit of each GPU node (U11)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Final

import msgspec

from gputile.api.conversion import unix_seconds
from gputile.api.core import Node
from gputile.api.well_known import (
    CONDITION_PREFIX,
    CONTROLLER_LEASE,
    EXTENDER_LEASE,
    INVENTORY_ANNOTATION,
)
from gputile.api.wording import described, first_of
from gputile.api.workloads import (
    DaemonSet,
    Deployment,
    Event,
    Lease,
    RunningPod,
    WebhookConfiguration,
    WebhookEntry,
)
from gputile.core.devices.inventory import Inventory, InventoryError, decode_inventory
from gputile.core.ledger.node_info import has_agent_condition
from gputile.tools.views.inspect import unit_name
from gputile.tools.views.installation_problems import InstallationProblem
from gputile.tools.views.rollout import COMPONENT_LABEL, Component, RolloutState, component_of
from gputile.tools.views.terminal_text import aligned, inert

_OUR_WEBHOOKS: Final = ".gputile.io"
_RENEWED_WITHIN_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class Traces:
    """Signs that gputile is installed although no components are found."""

    here: list[str] = field(default_factory=list)  # sentences on the signs in the namespace
    running: bool = False  # whether a program of gputile has recently renewed its Lease
    elsewhere: list[str] = field(default_factory=list)  # other namespaces in gputile's webhooks


def traces_of(
    leases: Iterable[Lease],
    configurations: Iterable[WebhookConfiguration],
    namespace: str,
    now: float,
) -> Traces:
    """Return the signs of gputile in a namespace's Leases and in all webhook configurations.

    ``now`` is this machine's Unix time in seconds. Clocks in the cluster may differ by minutes.
    """
    holders = [
        f"{lease.spec.holder_identity} holds the Lease {lease.metadata.name}"
        for lease in leases
        if lease.spec.holder_identity
        and lease.metadata.name in (CONTROLLER_LEASE, EXTENDER_LEASE)
        and now - unix_seconds(lease.spec.renew_time) < _RENEWED_WITHIN_S
    ]
    found = Traces(here=holders, running=bool(holders))
    for configuration in configurations:
        places = {
            _namespace(each) for each in configuration.webhooks if each.name.endswith(_OUR_WEBHOOKS)
        }
        if places & {"", namespace}:
            found.here.append(f"the webhook configuration {configuration.metadata.name} exists")
        found.elsewhere.extend(sorted(places - {"", namespace, *found.elsewhere}))
    return found


def _namespace(webhook: WebhookEntry) -> str:
    """Return the namespace of a webhook's Service, or "" if the webhook has a URL instead."""
    service = webhook.client_config.service
    return service.namespace if service is not None else ""


_NAMED: Final = 20  # the largest number of components that the first line names
_HEADING: Final = ("COMPONENT", "READY", "STATE", "REASON")
_NO_AGENT: Final = "no agent runs there; this is the last report"


class RolloutPhase(StrEnum):
    """The state of the installation. States that ACK also reports have the same values as in ACK.

    OUTSIDE_OF_PODS means that gputile's programs renew their Leases but do not run in pods. It is
    unknown whether these programs are ready.
    """

    DEPLOYED = "Deployed"
    DEPLOYING = "Deploying"
    FAILED = "Failed"
    NOT_INSTALLED = "NotInstalled"
    OUTSIDE_OF_PODS = "OutsideOfPods"


class InstalledNode(msgspec.Struct, frozen=True, rename="camel"):
    """A GPU node, with the mode, unit and problems that its agent has reported."""

    name: Annotated[str, described("The node's name.")]
    agent_there: Annotated[bool, described("Whether an agent has a pod on the node.")]
    agent_ready: Annotated[bool, described("Whether the agent is ready.")]
    mode: Annotated[str, described('The mode in force, or "" if the agent has reported none.')]
    unit_mib: Annotated[
        int, described("The memory unit in force in MiB, or 0 if the agent has reported none.")
    ]
    gpus: Annotated[int, described("The number of the node's GPUs.")]
    problems: Annotated[
        list[str], described("Pending changes and problems, as the node's conditions report them.")
    ]


class Installation(msgspec.Struct, frozen=True, rename="camel"):
    """The whole installation. ``traces`` and ``elsewhere`` are empty if there are components."""

    phase: Annotated[RolloutPhase, described("The state of the installation.")]
    unit_mib: Annotated[
        int, described("The configured memory unit in MiB, or 0 without a configuration.")
    ]
    resting: Annotated[int, described("The number of nodes without GPUs, whose agents are idle.")]
    components: Annotated[list[Component], described("The components.")]
    nodes: Annotated[list[InstalledNode], described("The GPU nodes.")]
    traces: Annotated[
        list[str], described("If no components exist, signs of programs that run outside of pods.")
    ] = []
    elsewhere: Annotated[
        list[str],
        described("If no components exist, other namespaces that have a webhook of gputile."),
    ] = []
    problems: Annotated[
        list[InstallationProblem], described("Problems that concern the whole installation.")
    ] = []


def assess(
    workloads: Sequence[Deployment | DaemonSet],
    pods: Sequence[RunningPod],
    events: Sequence[Event],
    nodes: Sequence[Node],
    unit_mib: int,
    probes: Mapping[str, str] = MappingProxyType({}),
) -> Installation:
    """Assess the installation from the objects of its namespace and the cluster's nodes.

    ``probes`` maps names of pods that are not ready to the responses of their readiness probes.
    """
    components = sorted(
        (component_of(w, _pods_of(w, pods), events, probes) for w in workloads),
        key=lambda c: c.name,
    )
    agents = _agents(pods)
    states = {component.state for component in components}
    phase = RolloutPhase.DEPLOYED
    if not components:
        phase = RolloutPhase.NOT_INSTALLED
    elif RolloutState.FAILED in states:
        phase = RolloutPhase.FAILED
    elif RolloutState.DEPLOYING in states:
        phase = RolloutPhase.DEPLOYING
    reported = {node.metadata.name: _has_reported(node) for node in nodes}
    resting = sum(
        agents.get(name, False) and not has_reported for name, has_reported in reported.items()
    )
    served = [
        n
        for n in nodes
        if reported[n.metadata.name] or agents.get(n.metadata.name) is False or _problems(n)
    ]
    return Installation(
        phase,
        unit_mib,
        resting,
        components,
        sorted((_node(node, agents) for node in served), key=lambda n: n.name),
    )


def with_problems(
    installation: Installation, problems: Sequence[InstallationProblem]
) -> Installation:
    """Return the installation with these problems, in the best phase that the problems allow."""
    phase, states = installation.phase, {problem.state for problem in problems}
    if phase in (RolloutPhase.DEPLOYED, RolloutPhase.DEPLOYING) and RolloutState.FAILED in states:
        phase = RolloutPhase.FAILED
    elif phase is RolloutPhase.DEPLOYED and RolloutState.DEPLOYING in states:
        phase = RolloutPhase.DEPLOYING
    return msgspec.structs.replace(installation, phase=phase, problems=list(problems))


def with_traces(installation: Installation, traces: Traces) -> Installation:
    """Add signs of gputile to an installation without components, and adapt its phase."""
    if installation.phase is not RolloutPhase.NOT_INSTALLED:
        return installation
    if not traces.here:
        return msgspec.structs.replace(installation, elsewhere=traces.elsewhere)
    nodes = [
        msgspec.structs.replace(
            node, problems=[each for each in node.problems if each != _NO_AGENT]
        )
        for node in installation.nodes
    ]
    phase = RolloutPhase.OUTSIDE_OF_PODS if traces.running else RolloutPhase.NOT_INSTALLED
    return msgspec.structs.replace(installation, phase=phase, nodes=nodes, traces=traces.here)


def table(installation: Installation, width: int | None = None) -> str:
    """Return the human-readable output, with tables of at most ``width`` columns."""
    components = installation.components
    bad = [component.name for component in components if component.state is not RolloutState.READY]
    bad += [
        problem.object
        for problem in installation.problems
        if problem.state is not RolloutState.READY
    ]
    lines = [f"gputile: {installation.phase}{': ' if bad else ''}{inert(first_of(bad, _NAMED))}"]
    if not components:
        lines += _trace_lines(installation)
    if components:
        rows = [
            (each.name, f"{each.ready}/{each.wanted}", each.state.value, each.reason)
            for each in components
        ]
        lines += ["", *aligned([_HEADING, *rows], width)]
    for each in installation.problems:
        lines += ["", inert(f"{each.object}: {each.rule}.")]
    remedies = [(each.name, each.remedy) for each in components if each.remedy]
    remedies += [(each.object, each.remedy) for each in installation.problems]
    if remedies:
        lines += [
            "",
            "What to do:",
            *(f"- {inert(about)}: {inert(remedy)}" for about, remedy in remedies),
        ]
    if installation.nodes:
        heading = ("NODE", "AGENT", "MODE", "UNIT", "GPUS", "PROBLEMS")
        absent = "-" if installation.phase is RolloutPhase.OUTSIDE_OF_PODS else "none"
        lines += [
            "",
            *aligned([heading, *(_node_row(node, absent) for node in installation.nodes)], width),
        ]
        other = [
            n
            for n in installation.nodes
            if n.agent_there and n.unit_mib not in (0, installation.unit_mib)
        ]
        if installation.unit_mib and other:
            rest = "1 node still has" if len(other) == 1 else f"{len(other)} nodes still have"
            lines += ["", f"The memory unit is {_unit(installation.unit_mib)}; {rest} another one."]
    if installation.resting:
        rest = "1 node has no GPU, and its agent rests" if installation.resting == 1 else ""
        lines += [
            "",
            f"{rest or f'{installation.resting} nodes have no GPU, and their agents rest'}.",
        ]
    return "\n".join(lines) + "\n"


def _trace_lines(installation: Installation) -> list[str]:
    """Return what remains of gputile in a cluster without its components, a line each."""
    found = ["its configuration exists"] if installation.unit_mib else []
    if count := len(installation.nodes):
        found.append(
            "1 node has an agent's report" if count == 1 else f"{count} nodes have agents' reports"
        )
    found += map(inert, installation.traces)
    if not found and not installation.elsewhere:
        return []
    if installation.phase is RolloutPhase.OUTSIDE_OF_PODS:
        advice = (
            "gputile runs outside of pods. Whether it is ready is unknown. Each program answers "
            "/readyz on its health port."
        )
    elif installation.elsewhere:
        other = inert(installation.elsewhere[0])
        advice = f"Its webhook is in the namespace {other} (--installed-in {other})."
    else:
        advice = "It may run in another namespace (--installed-in), or these may be remains of it."
    but = f", but {_listed(found)}" if found else ""
    return ["", f"This namespace has no Deployments and DaemonSets of gputile{but}. {advice}"]


def _listed(texts: Sequence[str]) -> str:
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if texts[1:] else texts)


def _agents(pods: Iterable[RunningPod]) -> dict[str, bool]:
    """Map nodes to whether an agent is ready. During an upgrade, a node may have two agents."""
    ready: dict[str, bool] = {}
    for pod in pods:
        if pod.metadata.labels.get(COMPONENT_LABEL) == "agent":
            ready[pod.spec.node_name] = ready.get(pod.spec.node_name, False) or pod.ready
    return ready


def _has_reported(node: Node) -> bool:
    """Return whether an agent has set an inventory or a condition. Agents do so on GPU nodes."""
    return INVENTORY_ANNOTATION in node.metadata.annotations or has_agent_condition(node)


def _pods_of(workload: Deployment | DaemonSet, pods: Iterable[RunningPod]) -> list[RunningPod]:
    name = workload.metadata.labels.get(COMPONENT_LABEL)
    return [pod for pod in pods if name and pod.metadata.labels.get(COMPONENT_LABEL) == name]


def _node(node: Node, agents: dict[str, bool]) -> InstalledNode:
    problems = _problems(node)
    inventory = Inventory(gpus=())
    try:
        inventory = decode_inventory(node.metadata.annotations[INVENTORY_ANNOTATION])
    except KeyError:
        problems += [] if _has_reported(node) else ["its agent has reported no GPUs"]
    except InventoryError as error:
        problems.append(f"its annotation {INVENTORY_ANNOTATION} cannot be read: {error}")
    if node.metadata.name not in agents:
        problems = [_NO_AGENT, *problems]
    return InstalledNode(
        name=node.metadata.name,
        agent_there=node.metadata.name in agents,
        agent_ready=agents.get(node.metadata.name, False),
        mode=inventory.mode,
        unit_mib=inventory.unit_mib,
        gpus=len(inventory.gpus),
        problems=problems,
    )


def _node_row(node: InstalledNode, absent: str) -> tuple[str, ...]:
    """Return the row of a node. ``absent`` is the text for a node without an agent's pod."""
    agent = "ready" if node.agent_ready else "not ready" if node.agent_there else absent
    return (
        node.name,
        agent,
        node.mode or "-",
        _unit(node.unit_mib),
        str(node.gpus),
        "; ".join(node.problems),
    )


def _problems(node: Node) -> list[str]:
    return [
        f"{condition.reason}: {condition.message}"
        for condition in node.status.conditions
        if condition.type.startswith(CONDITION_PREFIX) and condition.status == "True"
    ]


def _unit(mib: int) -> str:
    return {0: "-", 1024: "1GiB"}.get(mib) or unit_name(mib)
