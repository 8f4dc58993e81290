"""``gputile simulate``: what would happen to these workloads on this cluster."""

import dataclasses
import time
from typing import TYPE_CHECKING

import typer

from gputile.cli.configuration import INSTALLED_IN, InstalledIn, assumed, in_force, read_given
from gputile.cli.decisions import DecisionFormat, SimulationResult, write_result
from gputile.cli.options import REQUEST_TIMEOUT, Plain, Reach, RequestTimeout
from gputile.cli.output import BAD_INPUT, NOT_PLACED, fail, note
from gputile.cli.progress import SAY_AFTER_PIPED_S, Progress, counted
from gputile.cli.simulate_options import (
    AdmissionSwitch,
    ClusterFiles,
    Compare,
    Config,
    Context,
    FitFiles,
    FromCluster,
    IgnoreUnknown,
    KindFiles,
    Kubeconfig,
    Namespace,
    Policy,
    Printed,
    Switch,
    Unit,
    Validate,
    WithoutNode,
    WithoutNodes,
    WorkloadFiles,
)
from gputile.tools.simulator.validation import Validation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gputile.api.config.v1alpha1 import Configuration
    from gputile.api.core import Pod
    from gputile.cli.configuration import GivenConfiguration
    from gputile.cli.live import Live
    from gputile.tools.simulator.intake import Intake
    from gputile.tools.simulator.scenario import Scenario
    from gputile.tools.simulator.simulation import Simulation
    from gputile.tools.simulator.whatif import Fit

_NAMES_SHOWN = 5


def simulate(
    cluster: ClusterFiles = None,
    files: WorkloadFiles = None,
    from_cluster: FromCluster = False,
    namespace: Namespace = None,
    fit: FitFiles = None,
    unit: Unit = None,
    without_node: WithoutNode = None,
    without_nodes: WithoutNodes = None,
    admission: AdmissionSwitch = Switch.ON,
    validate: Validate = Validation.STRICT,
    kinds: KindFiles = None,
    ignore_unknown: IgnoreUnknown = False,
    compare: Compare = None,
    output: Printed = DecisionFormat.TABLE,
    plain: Plain = False,
    config: Config = None,
    installed_in: InstalledIn = INSTALLED_IN,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    request_timeout: RequestTimeout = REQUEST_TIMEOUT,
) -> None:
    """Decide node and GPUs for each pod of some manifests, with the very code that schedules live.

    Draws each GPU with what is on it, and prints for each workload where its pods go, and for pods without a place why
    not and what would help. Nothing is sent to any cluster.

    Exit code: 0 when every pod was placed, 3 when one was not (with --fit: when not even one copy fits), 2 for input
    that cannot be used, or that a cluster with gputile refuses, 1 when the cluster does not answer.
    """
    from gputile.tools.simulator.notes import told_together

    if not cluster and not from_cluster:
        fail("give the cluster: --cluster FILE, or --from-cluster")
    if compare is not None and output is DecisionFormat.INSPECT:
        fail("--compare: the tables of kubectl inspect cgpu show one policy; give another --output")
    if output is DecisionFormat.HTML and (compare is not None or fit):
        fail("-o html shows one result: leave --compare and --fit out, or give another --output")
    given, reach = read_given(config), Reach(kubeconfig, context, request_timeout)
    live = _live(reach, given, installed_in) if from_cluster else None
    if live is None:
        reach.not_used()
    else:
        given = live.given
    scenario = _read(cluster or (), files or (), live, given, namespace)
    configuration = _with_unit(_configuration(scenario, live, given), unit)
    intake = _intake(configuration, admission, validate, kinds or (), ignore_unknown)
    more = _make_pods(scenario, intake, fit or (), live, files or ())
    _imagine(scenario, configuration, without_node or (), without_nodes, changed=unit is not None)
    result = _simulated(configuration, scenario, more)
    other = _simulated(_with_policy(configuration, compare), scenario, more) if compare is not None else None
    write_result(output, result, other, plain=plain)
    for text in told_together(scenario.notes):
        note(text)
    if _is_unplaced(result):
        raise typer.Exit(NOT_PLACED)


def _live(reach: Reach, given: "GivenConfiguration | None", installed_in: str) -> "Live":
    """Return what the cluster that kubectl talks to holds now."""
    from gputile.cli.live import read_cluster

    live = read_cluster(reach, given, installed_in, groups=True)
    if live.unread:
        fail("\n".join([*live.unread, "what these hold is not known, so nothing can be judged"]))
    return live


def _with_policy(configuration: "Configuration", policy: Policy) -> "Configuration":
    import msgspec

    return msgspec.structs.replace(configuration, placement=policy.value)


def _is_unplaced(result: SimulationResult) -> bool:
    """Return whether a pod has no place, or not even one copy fits."""
    return result.placed < len(result.outcomes) or (result.count is not None and not result.count.copies)


def _simulated(configuration: "Configuration", scenario: "Scenario", more: "Sequence[Pod]") -> SimulationResult:
    """Return what becomes of the scenario, and how many copies of ``more`` pods fit besides, where there are any."""
    from gputile.tools.simulator.simulation import Simulation

    simulation = Simulation(configuration)
    outcomes = list(counted(simulation.run(scenario, time.time_ns), "Deciding", len(scenario.pending)))
    return SimulationResult(simulation, scenario, outcomes, _count(simulation, more) if more else None)


def _read(
    cluster: "Sequence[str]",
    files: "Sequence[str]",
    live: "Live | None",
    given: "GivenConfiguration | None",
    namespace: str | None,
) -> "Scenario":
    """Return what the files and the nodes of the live cluster hold together."""
    from gputile.tools.simulator.manifests import ManifestError
    from gputile.tools.simulator.scenario import DEFAULT_NAMESPACE, ScenarioFiles, read_scenario

    try:
        with Progress(f"reading {', '.join([*cluster, *files])}", piped=SAY_AFTER_PIPED_S):
            return read_scenario(
                ScenarioFiles(cluster, files),
                nodes=live.nodes if live is not None else (),
                groups=live.groups if live is not None else None,
                configured_mib=given.unit_mib if given is not None else None,
                namespace=namespace or (live.namespace if live is not None else DEFAULT_NAMESPACE),
            )
    except ManifestError as error:
        fail(str(error), BAD_INPUT)


def _intake(
    configuration: "Configuration", admission: Switch, validate: Validation, kinds: "Sequence[str]", ignore: bool
) -> "Intake":
    """Return how objects are taken in."""
    from gputile.tools.simulator.admission import Admission
    from gputile.tools.simulator.intake import Intake
    from gputile.tools.simulator.manifests import ManifestError
    from gputile.tools.simulator.pod_kinds import known_kinds

    try:
        table = known_kinds(kinds)
    except ManifestError as error:
        fail(str(error), BAD_INPUT)
    return Intake(Admission(configuration, enforced=admission is Switch.ON), table, validate, ignore)


def _make_pods(
    scenario: "Scenario", intake: "Intake", fit: "Sequence[str]", live: "Live | None", files: "Sequence[str]"
) -> "list[Pod]":
    """Add the pods of the files, and those of the live cluster; return the pods to be counted."""
    from gputile.tools.simulator.manifests import ManifestError
    from gputile.tools.simulator.notes import Note
    from gputile.tools.simulator.running import ImmutableObject, recognise
    from gputile.tools.simulator.scenario import load_pods, make_pods

    if live is not None:
        intake = dataclasses.replace(
            intake, admission=dataclasses.replace(intake.admission, unsafe=live.unsafe_namespaces)
        )
    try:
        with Progress("Making pods of the manifests", piped=SAY_AFTER_PIPED_S):
            expansion = make_pods(scenario, intake)
            more = load_pods(fit, scenario, intake) if fit else []
        if files and not expansion.pods:
            scenario.notes.append(Note("the files ask for no pod, so there is nothing to place"))
        if live is not None:
            recognise(scenario, live.pods, expansion.owned)
    except (ManifestError, ImmutableObject) as error:
        fail(str(error), BAD_INPUT)
    return more


def _configuration(scenario: "Scenario", live: "Live | None", given: "GivenConfiguration | None") -> "Configuration":
    """Return the configuration that goes for the scenario; say what is taken for granted of a live cluster."""
    from gputile.core.ledger.node_info import unit_in_force

    configuration = in_force(given, scenario.unit_mib, unit_in_force(scenario.nodes))
    if live is not None and given is None:
        configuration = assumed(configuration, live.unknown)
    if live is not None and live.unlisted and configuration.admission.gangs:
        note(f"the cluster's PodGroups are not known ({live.unlisted}). Assumed: there are none but those of -f FILE")
    return configuration


def _with_unit(configuration: "Configuration", unit: str | None) -> "Configuration":
    """Return the configuration as if the memory unit were another one."""
    import msgspec

    from gputile.api.config.v1alpha1 import ConfigurationError

    if unit is None:
        return configuration
    try:
        return msgspec.structs.replace(configuration, gpu_memory_unit=unit)
    except ConfigurationError as error:
        fail(f"--unit {unit}: {error}", BAD_INPUT)


def _imagine(
    scenario: "Scenario", configuration: "Configuration", names: "Sequence[str]", selector: str | None, *, changed: bool
) -> None:
    """Take away the nodes that are to leave; where the unit has ``changed``, have the nodes count in it."""
    from gputile.tools.simulator.label_selector import SelectorError
    from gputile.tools.simulator.whatif import UnknownNode, selected, with_unit, without_nodes

    try:
        leaving = {*names, *(selected(scenario.nodes, selector) if selector is not None else ())}
        without_nodes(scenario, leaving)
    except SelectorError as error:
        fail(f"--without-nodes: {error}", BAD_INPUT)
    except UnknownNode as error:
        fail(f"{error}; the nodes are {_some([node.metadata.name for node in scenario.nodes])}", BAD_INPUT)
    if changed:
        with_unit(scenario, configuration.unit_mib)


def _some(names: list[str]) -> str:
    return ", ".join(sorted(names)[:_NAMES_SHOWN]) + (", ..." if len(names) > _NAMES_SHOWN else "")


def _count(simulation: "Simulation", pods: "Sequence[Pod]") -> "Fit":
    from gputile.tools.simulator.whatif import fit_more

    with Progress("Fitting copies:", piped=SAY_AFTER_PIPED_S) as progress:
        return fit_more(simulation, pods, time.time_ns, progress.at)
