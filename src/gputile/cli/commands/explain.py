"""Runs ``gputile explain``, which explains why a pod is pending and what would help."""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from gputile.api.wording import broken_label_name, gib_text
from gputile.cli.configuration import ClusterFiles, ClusterSource
from gputile.cli.options import ApiOptions, Printed, namespace_option, takes
from gputile.cli.reads.cluster_view import read_state
from gputile.cli.terminal import (
    BAD_INPUT,
    NOT_PLACED,
    Output,
    fail,
    note,
    write,
    write_data,
    write_remedies,
    write_table,
    write_text,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gputile.api.core import Pod
    from gputile.tools.simulator.explanation import PodExplanation
    from gputile.tools.simulator.node_reports import GpuReport, NodeReport

_SHORT = {
    "po": "pod",
    "deploy": "deployment",
    "sts": "statefulset",
    "ds": "daemonset",
    "rs": "replicaset",
    "cj": "cronjob",
}
_WORKLOADS = ("deployment", "statefulset", "daemonset", "replicaset", "job", "cronjob")
_NODES_SHOWN = 10
_PODS_SHOWN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainOptions(ClusterSource):
    pod: Annotated[
        str,
        typer.Argument(
            metavar="POD",
            help="NAME, NAMESPACE/NAME or TYPE/NAME. For a workload such as deployment/web, a "
            "pending pod of the workload is preferred.",
        ),
    ]
    namespace: Annotated[
        str | None,
        namespace_option(
            "The namespace of the pods. The default is the namespace of the context. "
            "NAMESPACE/NAME overrides this option."
        ),
    ] = None
    cluster: ClusterFiles = None
    every_node: Annotated[
        bool,
        typer.Option(
            "--all", help=f"Show every node, not only the {_NODES_SHOWN} that nearly fit."
        ),
    ] = False
    output: Printed = Output.TABLE


@takes(ExplainOptions)
def explain(options: ExplainOptions) -> None:
    """Explain where a pod runs, or why it is pending, by node and GPU, and what would help.

    The decision is computed again with the scheduler's own code. Nothing in the cluster is changed.

    If the pod does not exist because its controller could not create it, the reason is printed.

    Exit code: 0 if the pod is placed or fits on a node, 3 if it fits on no node, 2 if the input is
    invalid or the pod does not exist, 1 if the API server does not answer.
    """
    from gputile.tools.simulator.explanation import explain_pod

    pod = options.pod
    if pod.count("/") > 1 or not all(pod.split("/")):
        fail(f"{pod!r} is not the name of a pod: use NAME, NAMESPACE/NAME or TYPE/NAME", BAD_INPUT)
    if "/" in pod and (why := broken_label_name(pod.partition("/")[0].lower())):
        fail(f"the namespace of {pod}: {why}", BAD_INPUT)
    state = read_state(options)
    within = options.namespace or state.namespace
    first, _, name = pod.rpartition("/")
    kind = _SHORT.get(first.lower(), first.lower().removesuffix("s"))
    namespace = within if kind in ("", "pod", *_WORKLOADS) else first
    keys = (pod,) if kind in _WORKLOADS else (pod, f"{namespace}/{name}")
    found = next((each for each in state.pods if each.key in keys), None)
    if kind not in ("", "pod"):
        found = _of_workload(kind, name, within, state.pods) or found
    if found is None:
        workload = f"{kind}/{name}" if kind in _WORKLOADS else ""
        _fail_missing(namespace, name, workload, state.pods, None if options.cluster else options)
    now_ns = time.time_ns()
    explanation = explain_pod(
        found, state.nodes, state.pods, state.configuration, now_ns, state.claims
    )
    _write_answer(options.output, explanation, every=options.every_node)
    if not explanation.placed:
        raise typer.Exit(NOT_PLACED)


def _of_workload(kind: str, name: str, namespace: str, pods: "Sequence[Pod]") -> "Pod | None":
    """Return a pod of a workload, preferably a pending pod, or None if there are no pods."""
    from gputile.tools.simulator.scenario import owners_of

    found = [
        each
        for each in pods
        if each.metadata.namespace == namespace
        and any(owner.name == name and owner.kind.lower() == kind for owner in owners_of(each))
    ]
    if not found:
        return None
    chosen = min(found, key=lambda each: (each.finished, bool(each.spec.node_name), each.key))
    waiting = sum(not each.finished and not each.spec.node_name for each in found)
    note(
        f"{kind}/{name} has {len(found)} pods, of which {waiting} are pending; this is "
        f"{chosen.metadata.name}"
    )
    return chosen


def _fail_missing(
    namespace: str, name: str, workload: str, pods: "Sequence[Pod]", live: ApiOptions | None
) -> NoReturn:
    """Exit because the pod does not exist. The message gives the cause or suggests another name.

    ``workload`` is TYPE/NAME if the user named a workload, or else "".
    """
    from gputile.api.wording import nearest

    same_name = sorted(pod.key for pod in pods if pod.metadata.name == name)
    names = [pod.metadata.name for pod in pods if pod.metadata.namespace == namespace]
    hint = f"; there is {same_name[0]}" if same_name else nearest(name, names)
    if live is not None and not same_name:
        from gputile.cli.reads.live_cluster import read_failed_creations
        from gputile.tools.simulator.explanation import creation_refusal

        events = read_failed_creations(live, namespace)
        controllers = {each.involved_object.name for each in events} if workload else ()
        reasons = (
            creation_refusal(each, events)
            for each in (name, *controllers)
            if f"{each}-".startswith(f"{name}-")
        )
        hint = next((f": {why}" for why in reasons if why is not None), hint)
    missing = (
        f"pod of {workload} in namespace {namespace}" if workload else f"pod {namespace}/{name}"
    )
    fail(f"there is no {missing}{hint}", BAD_INPUT)


def _write_answer(output: Output, explanation: "PodExplanation", *, every: bool) -> None:
    if output.is_data:
        from gputile.tools.simulator.explanation import explain_answer

        write_data(explain_answer(explanation), output)
        return
    for sentence in explanation.text:
        write_text(sentence)
    if explanation.reports:
        write("\n")
        _write_nodes(explanation.reports, every=every)
    if explanation.changes:
        write("\n")
        write_remedies(explanation.changes)


def _write_nodes(reports: "Sequence[NodeReport]", *, every: bool) -> None:
    """Print why nodes do not fit the pod. Equal nodes are merged unless ``every`` is set."""
    groups: dict[tuple[Any, ...], list[NodeReport]] = {}
    for report in reports:
        group = report.in_tree, report.gpu, tuple(_gpu_rows(report)), report.name if every else ""
        groups.setdefault(group, []).append(report)
    shown = list(groups.values())[: None if every else _NODES_SHOWN]
    rows: list[tuple[str, ...]] = [
        ("NODE", "GPU", "FREE/TOTAL GiB", "COMPUTE FREE", "PODS", "WHY NOT")
    ]
    for first, *others in shown:
        name = first.name + (f" and {len(others)} more" if others else "")
        rows.append((name, "", "", "", "", first.text or "it fits"))
        rows += _gpu_rows(first)
    write_table(rows)
    if left := len(reports) - sum(map(len, shown)):
        write(f"... and {left} more nodes that are further from fitting. --all shows all nodes.\n")


def _gpu_rows(report: "NodeReport") -> "list[tuple[str, ...]]":
    """Return the rows of a node's GPUs. A row covers all GPUs with equal cells, such as 0-3,6."""
    indices: dict[tuple[str, ...], list[int]] = {}
    for gpu in report.gpus:
        indices.setdefault(_gpu_cells(gpu), []).append(gpu.index)
    return [("", _ranges(found), *cells) for cells, found in indices.items()]


def _ranges(numbers: "Sequence[int]") -> str:
    """Return ascending numbers as ranges, such as 0-3,6."""
    starts = [n for n in numbers if n - 1 not in numbers]
    ends = [n for n in numbers if n + 1 not in numbers]
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True))


def _gpu_cells(gpu: "GpuReport") -> tuple[str, ...]:
    holders = [f"{holder.namespace}/{holder.name} {gib_text(holder.mib)}" for holder in gpu.pods]
    shown = ", ".join(holders[:_PODS_SHOWN])
    if len(holders) > _PODS_SHOWN:
        shown += f", and {len(holders) - _PODS_SHOWN} more"
    free = f"{gib_text(gpu.free_mib)}/{gib_text(gpu.total_mib)}"
    return free, f"{gpu.free_percent}%", shown or "-", gpu.lacks
