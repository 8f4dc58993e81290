"""Runs ``gputile simulate``, which shows where the pods of workloads would run on a cluster."""

import dataclasses
import time
from typing import TYPE_CHECKING

import typer

from gputile.api.well_known import UNSAFE_ACCESS_LABEL
from gputile.cli.configuration import UnknownConfiguration, assumed, in_force, read_given
from gputile.cli.options import takes
from gputile.cli.simulate_options import SimulateOptions, Switch, Validation
from gputile.cli.terminal import (
    BAD_INPUT,
    NOT_PLACED,
    SAY_AFTER_PIPED_S,
    DecisionFormat,
    Progress,
    fail,
    note,
    with_progress,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gputile.api.config.v1alpha1 import Configuration
    from gputile.api.core import Pod
    from gputile.cli.answers import SimulationResult
    from gputile.cli.configuration import GivenConfiguration
    from gputile.cli.reads.live_cluster import LiveCluster
    from gputile.tools.simulator.intake import Intake
    from gputile.tools.simulator.scenario import Scenario
    from gputile.tools.simulator.simulation import Simulation
    from gputile.tools.simulator.what_if import Fit, MemoryNeeds
    from gputile.tools.views.inspect import NodeSummary

_NAMES_SHOWN = 5
_REFUSED_SHOWN = 50
_ASSUMED = {
    "ResourceClaims": "no claim has a GPU",
    "PodGroups": "the only PodGroups are those in -f FILE",
    "PriorityClasses": "pods that name one have the priority 0, and there is no default",
    "PodDisruptionBudgets": "no PodDisruptionBudget protects the pods that are preempted",
    "namespaces": f"no namespace has the label {UNSAFE_ACCESS_LABEL}",
}
_NO_WORKLOADS = (
    "no workloads are given, so there is nothing to place: use -f FILE, or draw the cluster with "
    "gputile inspect -o bars"
)


@takes(SimulateOptions)
def simulate(options: SimulateOptions) -> None:
    """Show on which nodes and GPUs the pods of manifests would run, using the scheduler's own code.

    Draws each GPU with its pods. Prints where the pods of each workload are placed, or why they are
    not placed and what would help. With --from-cluster or --validate=server, the API server
    validates each object by a dry run. Nothing is stored in any cluster.

    Exit code: 0 if every pod was placed, 3 if a pod was not placed or the pods of --fit do not fit
    even once, 2 if the input is invalid or the API server would refuse it, 1 if the API server does
    not answer.
    """
    from gputile.cli.simulation_report import write_result
    from gputile.tools.simulator.manifests import merged_notes

    _check(options)
    given = read_given(options.config)
    live = _live(options, given) if options.from_cluster else None
    if live is not None:
        given = live.given
    elif options.validate is not Validation.SERVER:
        options.not_used()
    scenario = _read(options, live, given)
    configuration = _with_options(_configuration(scenario, live, given), options)
    _add_nodes(options, scenario, configuration)
    intake = _intake(options, configuration)
    if live is not None:
        intake = _with_cluster_admission(intake, live)
    if live is not None or options.validate is Validation.SERVER:
        intake = _validated_by_server(options, scenario, intake)
    more = _make_pods(options, scenario, intake, live)
    before = _current_nodes(scenario, configuration) if options.mode is not None else None
    _apply_what_if(options, scenario, configuration)
    result, other = _simulated(configuration, scenario, more), None
    if options.compare is not None:
        import msgspec

        other = _simulated(
            msgspec.structs.replace(configuration, placement=options.compare.value), scenario, more
        )
    result = dataclasses.replace(result, before=before, mode=options.mode)
    write_result(options.output, result, other, plain=options.plain)
    for text in merged_notes(scenario.notes):
        note(text)
    nothing_fits = result.count is not None and not result.count.copies
    if result.placed < len(result.outcomes) or nothing_fits:
        raise typer.Exit(NOT_PLACED)


def _check(options: SimulateOptions) -> None:
    if not options.cluster and not options.from_cluster:
        fail("no cluster is given: use --cluster FILE or --from-cluster")
    if options.need and options.mode is None:
        fail("--need requires --mode")
    if options.compare is not None and options.output is DecisionFormat.INSPECT:
        fail("--compare cannot be used with -o inspect, which shows one policy")
    if options.output is DecisionFormat.HTML and (options.compare is not None or options.fit):
        fail("-o html cannot be used with --compare or --fit: the page shows only one result")


def _live(options: SimulateOptions, given: "GivenConfiguration | None") -> "LiveCluster":
    """Read the objects of kubectl's current cluster. Exit if an object cannot be decoded."""
    from gputile.cli.reads.live_cluster import read_cluster

    live = read_cluster(options, given, options.installed_in, groups=True)
    if live.unread:
        fail("\n".join([*live.unread, "their GPUs are unknown, so nothing can be decided"]))
    return live


def _add_nodes(
    options: SimulateOptions, scenario: "Scenario", configuration: "Configuration"
) -> None:
    from gputile.tools.simulator.described_nodes import nodes_of_text
    from gputile.tools.simulator.manifests import ManifestError

    try:
        for number, text in enumerate(options.with_node or (), 1):
            scenario.nodes += nodes_of_text(text, number, configuration.unit_mib)
    except ManifestError as error:
        fail(str(error), BAD_INPUT)


def _simulated(
    configuration: "Configuration", scenario: "Scenario", more: "Sequence[Pod]"
) -> "SimulationResult":
    """Simulate the scenario. Then count how many copies of the pods in ``more`` still fit."""
    from gputile.cli.answers import SimulationResult
    from gputile.tools.simulator.simulation import Simulation

    simulation = Simulation(configuration)
    outcomes = list(
        with_progress(simulation.run(scenario, time.time_ns), "Deciding", len(scenario.pending))
    )
    return SimulationResult(
        simulation, scenario, outcomes, _count(simulation, more) if more else None
    )


def _read(
    options: SimulateOptions, live: "LiveCluster | None", given: "GivenConfiguration | None"
) -> "Scenario":
    """Build the scenario from the files, and from the nodes, PodGroups and claims in ``live``."""
    from gputile.tools.simulator.manifests import ManifestError
    from gputile.tools.simulator.scenario import DEFAULT_NAMESPACE, load_files, read_scenario

    cluster, files = options.cluster or (), options.files or ()
    try:
        with Progress(f"reading {', '.join([*cluster, *files])}", piped=SAY_AFTER_PIPED_S):
            scenario = read_scenario(
                *load_files(cluster, files),
                nodes=live.nodes if live is not None else None,
                groups=live.groups if live is not None else None,
                configured_mib=given.unit_mib if given is not None else None,
                namespace=options.namespace
                or (live.namespace if live is not None else DEFAULT_NAMESPACE),
            )
    except ManifestError as error:
        fail(str(error), BAD_INPUT)
    if live is not None:
        scenario.claims.claims |= {each.key: each for each in live.claims or ()}
    return scenario


def _intake(options: SimulateOptions, configuration: "Configuration") -> "Intake":
    from gputile.tools.simulator.admission import Admission
    from gputile.tools.simulator.fields import UnknownFields
    from gputile.tools.simulator.intake import Intake
    from gputile.tools.simulator.manifests import ManifestError
    from gputile.tools.simulator.pod_kinds import known_kinds

    try:
        table = known_kinds(options.kinds or ())
    except ManifestError as error:
        fail(str(error), BAD_INPUT)
    enforced = options.admission is Switch.ON
    admission = Admission(configuration, enforced=enforced, installed_in=options.installed_in)
    treatments = {Validation.WARN: UnknownFields.NOTED, Validation.IGNORE: UnknownFields.IGNORED}
    return Intake(
        admission,
        table,
        treatments.get(options.validate, UnknownFields.REFUSED),
        options.ignore_unknown,
    )


def _with_cluster_admission(intake: "Intake", live: "LiveCluster") -> "Intake":
    """Make admission use the live cluster's PriorityClasses and the labels of its namespaces."""
    from gputile.cli.reads.live_cluster import unsafe_namespaces

    admission = dataclasses.replace(intake.admission, unsafe=unsafe_namespaces(live.namespaces))
    if live.priority_classes is not None:
        admission = dataclasses.replace(admission, priorities=live.priority_classes)
    return dataclasses.replace(intake, admission=admission)


def _validated_by_server(
    options: SimulateOptions, scenario: "Scenario", intake: "Intake"
) -> "Intake":
    """Have the API server validate the objects. Exit if the API server refuses an object."""
    from gputile.cli.reads.dry_run import ask_server

    treatments = {Validation.WARN: "Warn", Validation.IGNORE: "Ignore"}
    verdict = ask_server(
        options, scenario.manifests, intake.kinds, treatments.get(options.validate, "Strict")
    )
    if refused := verdict.refused:
        more = (
            [f"and {len(refused) - _REFUSED_SHOWN:,} more mistakes"]
            if refused[_REFUSED_SHOWN:]
            else []
        )
        fail("\n".join([*refused[:_REFUSED_SHOWN], *more]), BAD_INPUT)
    scenario.notes += verdict.notes
    return dataclasses.replace(intake, accepted=verdict.accepted)


def _make_pods(
    options: SimulateOptions, scenario: "Scenario", intake: "Intake", live: "LiveCluster | None"
) -> "list[Pod]":
    """Add the files' and the live cluster's pods to ``scenario``. Return the pods of ``--fit``."""
    from gputile.tools.simulator.foreign_cluster import adopted_cluster
    from gputile.tools.simulator.manifests import ManifestError, Note
    from gputile.tools.simulator.scenario import load_pods, make_pods, match_live_pods

    try:
        with Progress("Making pods of the manifests", piped=SAY_AFTER_PIPED_S):
            expansion = make_pods(scenario, intake)
            more = load_pods(options.fit, scenario, expansion.intake) if options.fit else []
        # With these options, the simulation places running pods again.
        removed = (
            options.without_node or options.without_nodes is not None or options.mode is not None
        )
        if not expansion.pods and not more and not (removed and not options.files):
            if not options.files:
                raise ManifestError(_NO_WORKLOADS)
            scenario.notes.append(Note("the files create no pods, so there is nothing to place"))
    except ManifestError as error:
        fail(str(error), BAD_INPUT)
    if live is not None:
        match_live_pods(scenario, live.pods, expansion)
        scenario.budgets += live.budgets
    if options.mode is None:
        scenario.originals = {pod.metadata.uid: pod for pod in scenario.bound}
    unit_mib = intake.admission.configuration.unit_mib
    found = adopted_cluster(scenario.nodes, scenario.bound, unit_mib, scenario.pending)
    scenario.nodes, scenario.bound = found.nodes, found.pods
    scenario.notes += found.notes
    return more


def _configuration(
    scenario: "Scenario", live: "LiveCluster | None", given: "GivenConfiguration | None"
) -> "Configuration":
    """Return the configuration for the scenario. Print what is assumed about a live cluster."""
    from gputile.core.ledger.node_info import unit_in_force

    configuration = in_force(given, scenario.unit_mib, unit_in_force(scenario.nodes))
    if live is not None and isinstance(live.configuration, UnknownConfiguration):
        configuration = assumed(configuration, live.configuration.why)
    for kind, why in live.unlisted.items() if live is not None else ():
        if kind != "PodGroups" or configuration.admission.gangs:
            note(f"the cluster's {kind} are unknown ({why}). Assumed: {_ASSUMED[kind]}")
    return configuration


def _with_options(configuration: "Configuration", options: SimulateOptions) -> "Configuration":
    import msgspec

    from gputile.api.config.section import ConfigurationError

    if options.no_preemption:
        off = msgspec.structs.replace(configuration.preemption, enabled=False)
        configuration = msgspec.structs.replace(configuration, preemption=off)
    try:
        unit = options.unit or configuration.gpu_memory_unit
        return msgspec.structs.replace(configuration, gpu_memory_unit=unit)
    except ConfigurationError as error:
        fail(f"--unit {options.unit}: {error}", BAD_INPUT)


def _apply_what_if(
    options: SimulateOptions, scenario: "Scenario", configuration: "Configuration"
) -> None:
    """Apply the what-if options ``--without-node(s)``, ``--unit``, ``--mode`` and ``--need``."""
    from gputile.api.wording import nearest
    from gputile.tools.simulator.outcomes import workload_name
    from gputile.tools.simulator.what_if import (
        SelectorError,
        UnknownNode,
        selected_nodes,
        with_mode,
        with_unit,
        without_nodes,
    )
    from gputile.tools.simulator.workloads import owner_of

    selector = options.without_nodes
    try:
        removed = {
            *(options.without_node or ()),
            *(selected_nodes(scenario.nodes, selector) if selector is not None else ()),
        }
        without_nodes(scenario, removed)
    except SelectorError as error:
        fail(f"--without-nodes: {error}", BAD_INPUT)
    except UnknownNode as error:
        names = [node.metadata.name for node in scenario.nodes]
        hint = (
            ""
            if str(error).endswith("?")
            else nearest(error.name, names) or f"; the nodes are {_some(names)}"
        )
        fail(f"{error}{hint}", BAD_INPUT)
    if options.unit is not None:
        with_unit(scenario, configuration.unit_mib)
    if options.mode is not None:
        needs = _needs(options)
        with_mode(scenario, options.mode, configuration.unit_mib, needs)
        workloads = {workload_name(owner_of(pod)) for pod in scenario.pending}
        if unknown := sorted(needs.of_workload.keys() - workloads):
            fail(
                f"--need {unknown[0]}: the workload has no running "
                f"pod{nearest(unknown[0], workloads)}",
                BAD_INPUT,
            )


def _needs(options: SimulateOptions) -> "MemoryNeeds":
    from gputile.api.quantity import QuantityError, parse_mib
    from gputile.tools.simulator.what_if import MemoryNeeds

    of_workload: dict[str, int] = {}
    for text in options.need or ():
        workload, _, size = text.rpartition("=")
        try:
            of_workload[workload] = parse_mib(size)
        except QuantityError as error:
            fail(f"--need {text}: {error}; use 8GiB or deployment/NAME=8GiB", BAD_INPUT)
    return MemoryNeeds(of_workload, of_workload.pop("", 0))


def _current_nodes(scenario: "Scenario", configuration: "Configuration") -> "list[NodeSummary]":
    from gputile.tools.views.inspect import node_summaries

    return node_summaries(
        scenario.nodes,
        scenario.bound,
        configuration,
        time.time_ns(),
        scenario.claims.claims.values(),
    )


def _some(names: list[str]) -> str:
    return ", ".join(sorted(names)[:_NAMES_SHOWN]) + (", ..." if len(names) > _NAMES_SHOWN else "")


def _count(simulation: "Simulation", pods: "Sequence[Pod]") -> "Fit":
    from gputile.tools.simulator.what_if import fit_more

    with Progress("Fitting copies:", piped=SAY_AFTER_PIPED_S) as progress:
        return fit_more(simulation, pods, time.time_ns, progress.at)
