"""Prints the result of ``gputile simulate`` as tables, JSON, YAML or a self-contained HTML page."""

import base64
import hashlib
import re
import time
from typing import TYPE_CHECKING, Final

import msgspec

from gputile.api.wording import first_of
from gputile.cli.answers import SimulationResult, simulate_answer
from gputile.cli.terminal import (
    DecisionFormat,
    bars,
    columns,
    draw,
    write,
    write_data,
    write_remedies,
    write_table,
    write_text,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gputile.api.core import Pod
    from gputile.tools.simulator.outcomes import Advice
    from gputile.tools.simulator.simulation import PodOutcome
    from gputile.tools.simulator.what_if import Fit
    from gputile.tools.views.gpu_bars import NodeBars
    from gputile.tools.views.inspect import NodeSummary
    from gputile.tools.web.app import Asset
    from gputile.tools.web.records import PageAnswer

_NAMES_SHOWN = 3
_REASONS_SHOWN = 10
_ADVISED = 5  # reasons with remedies, which are computed for the first pod of each reason
_DRAWN = 200  # nodes
_LISTED = 200  # workloads


def write_result(
    output: DecisionFormat, result: SimulationResult, other: SimulationResult | None, *, plain: bool
) -> None:
    """Print a result in the format ``output``. ``other`` is the result of ``--compare``."""
    from gputile.tools.views import inspect

    if output in (DecisionFormat.JSON, DecisionFormat.YAML):
        write_data(simulate_answer(result, other), output)
        return
    if output is DecisionFormat.HTML:
        write(simulate_html(result))
        return
    nodes = result.nodes
    if output is DecisionFormat.TABLE:
        _Report(result, nodes, plain).write(other)
        return
    if output is DecisionFormat.WIDE:
        if result.outcomes or result.count is None:
            _write_pods(result.outcomes)
            write("\n")
        if result.count is not None:
            _write_count(result.count)
            write("\n")
    unit = inspect.unit_of(nodes, result.simulation.configuration.unit_mib)
    write(inspect.summary(nodes, unit, columns()))
    if other is not None and output is DecisionFormat.WIDE:
        write("\n")
        _write_comparison(result, other)


class _Report:
    """The default output of ``gputile simulate``, which groups pods by workload."""

    def __init__(
        self, result: SimulationResult, nodes: "Sequence[NodeSummary]", plain: bool
    ) -> None:
        from gputile.tools.simulator.outcomes import workload_outcomes

        self._result = result
        self._nodes = nodes
        self._plain = plain
        self._workloads = workload_outcomes(result.outcomes)

    def write(self, other: SimulationResult | None) -> None:
        """Print the report. ``other`` is the result of ``--compare``."""
        from gputile.tools.views.gpu_bars import groups_of

        drawn = self._bars(self._result, self._nodes[:_DRAWN])
        others = self._bars(other, other.nodes[:_DRAWN]) if other is not None else []
        before = {each.name: each for each in drawn}
        moved = [each for each in others if each != before.get(each.name)]
        groups = groups_of([*drawn, *others])
        write_text(self._sentence())
        write("\n")
        draw(drawn, groups, plain=self._plain)
        if len(self._nodes) > _DRAWN:
            write(f"... and {len(self._nodes) - _DRAWN} more nodes. -o wide shows all nodes.\n")
        if self._workloads:
            write("\n")
            self._write_workloads()
        self._write_unlimited()
        self._write_victims()
        self._write_refused()
        if self._result.before is not None:
            write("\n")
            _write_modes(self._result, self._result.before, self._nodes)
        if self._result.count is not None:
            write("\n")
            _write_count(self._result.count)
        if other is not None:
            write("\n")
            _write_comparison(self._result, other)
        if moved:
            write("\nWhere it differs:\n")
            draw(moved, groups, plain=self._plain)

    def _bars(self, result: SimulationResult, nodes: "Sequence[NodeSummary]") -> "list[NodeBars]":
        scenario = result.scenario
        pods = [*scenario.bound, *scenario.waiting, *(outcome.pod for outcome in result.outcomes)]
        return bars(nodes, pods)

    def _sentence(self) -> str:
        use, total = _use(self._nodes)
        gpus = (
            f"{use} of {total} GPU{'' if total == 1 else 's'} "
            f"{'is' if 1 in (use, total) else 'are'} in use"
        )
        pods, count = len(self._result.outcomes), self._result.placed
        verb = "has" if 1 in (pods, count) else "have"
        placed = f"{count} of {pods} pod{'' if pods == 1 else 's'} {verb} a place; " if pods else ""
        return f"{placed}{gpus}."

    def _write_workloads(self) -> None:
        from gputile.tools.simulator.outcomes import workload_name

        rows = [("NAMESPACE", "WORKLOAD", "PLACED", "EACH POD GETS", "NODES")]
        for workload in self._workloads[:_LISTED]:
            nodes = [
                name if count == workload.placed else f"{name} ({count})"
                for name, count in workload.nodes.items()
            ]
            rows.append(
                (
                    workload.owner.namespace,
                    workload_name(workload.owner),
                    f"{workload.placed}/{workload.pods}",
                    " or ".join(workload.allocations) or "-",
                    first_of(nodes, _NAMES_SHOWN) or "-",
                )
            )
        write_table(rows)
        if len(self._workloads) > _LISTED:
            write(f"... and {len(self._workloads) - _LISTED} more workloads. -o wide shows all.\n")

    def _write_unlimited(self) -> None:
        from gputile.tools.simulator.node_reports import memory_warning

        nodes = [
            each.node
            for each in self._result.outcomes
            if each.node is not None and each.allocation is not None
        ]
        if text := memory_warning(self._result.simulation.ledger, nodes):
            write("\n")
            write_text(text)

    def _write_victims(self) -> None:
        if not self._result.simulation.victims:
            return
        write("\nPods that would be preempted by pods of higher priority:\n")
        rows = [("POD", "PRIORITY", "NODE", "PREEMPTED BY")]
        for victim in self._result.simulation.victims:
            spec, preemptors = victim.pod.spec, first_of(victim.preemptors, _NAMES_SHOWN)
            rows.append(
                (victim.pod.key, str(spec.priority or 0), spec.node_name or "-", preemptors)
            )
        write_table(rows)

    def _write_refused(self) -> None:
        """Print the unplaced pods by reason, with remedies for the first ``_ADVISED`` reasons."""
        found: dict[str, list[Pod]] = {}
        for workload in self._workloads:
            for reason, pods in workload.refused.items():
                found.setdefault(reason, []).extend(pods)
        advised = self._advice([pods[0] for pods in list(found.values())[:_ADVISED]])
        for reason, pods in found.items():
            names = first_of([pod.key for pod in pods], _NAMES_SHOWN)
            write("\n")
            advice = advised.get(pods[0].metadata.uid)
            if advice is None:
                write_text(f"No place for {names}: {reason}")
                continue
            write_text(f"No place for {names}:")
            _write_nodes(advice.nodes)
            write_remedies(advice.remedies)

    def _advice(self, pods: "Sequence[Pod]") -> "Mapping[str, Advice]":
        from gputile.tools.simulator.outcomes import advice

        result = self._result
        return (
            advice(pods, result.scenario, result.outcomes, result.simulation, time.time_ns())
            if pods
            else {}
        )


def _write_nodes(nodes: "Mapping[str, Sequence[str]]") -> None:
    """Print why the nodes do not fit a pod. Nodes with the same reason share a row."""
    rows = [("NODE", "WHY NOT")]
    for why, names in list(nodes.items())[:_REASONS_SHOWN]:
        rows.append((first_of(names, _NAMES_SHOWN), why))
    if left := sum(map(len, list(nodes.values())[_REASONS_SHOWN:])):
        rows.append((f"{left} more", "further from fitting"))
    write_table(rows)


def _write_comparison(result: SimulationResult, other: SimulationResult) -> None:
    rows = [("PLACEMENT", "PODS PLACED", "GPUS IN USE", *(["COPIES"] if result.count else []))]
    for each in (result, other):
        use, total = _use(each.nodes)
        copies = [str(each.count.copies)] if each.count else []
        rows.append(
            (each.placement, f"{each.placed}/{len(each.outcomes)}", f"{use}/{total}", *copies)
        )
    write_table(rows)
    pods, saved = other.placed - result.placed, _use(result.nodes)[0] - _use(other.nodes)[0]
    changes = []
    if pods:
        changes.append(
            f"{abs(pods)} pod{'' if abs(pods) == 1 else 's'} {'more' if pods > 0 else 'fewer'} "
            f"placed"
        )
    if saved:
        changes.append(
            f"{abs(saved)} GPU{'' if abs(saved) == 1 else 's'} {'fewer' if saved > 0 else 'more'} "
            f"in use"
        )
    write(f"With {other.placement}: {', and '.join(changes) or 'as many pods on as many GPUs'}.\n")


def _write_modes(
    result: SimulationResult, before: "Sequence[NodeSummary]", nodes: "Sequence[NodeSummary]"
) -> None:
    """Compare the use of GPUs and nodes in the current cluster and in the mode of ``--mode``."""
    rows = [("CLUSTER", "GPUS IN USE", "NODES IN USE", "GPU MEMORY BOOKED")]
    for name, each in (("as it is", before), (f"mode {result.mode}", nodes)):
        use, total = _use(each)
        busy = sum(any(gpu.pods for gpu in node.gpus) for node in each)
        booked, memory = sum(node.booked_mib for node in each), sum(node.total_mib for node in each)
        share = f"{100 * booked // memory}%" if memory else "-"
        rows.append(
            (name, f"{use}/{total}", f"{busy}/{sum(bool(node.gpus) for node in each)}", share)
        )
    write_table(rows)
    whole = any(pod.whole for node in before if not node.replicas for pod in node.pods)
    saved = _use(before)[0] - _use(nodes)[0]
    homeless = len(result.outcomes) - result.placed
    if saved > 0:
        pods = f"{homeless} pod{'' if homeless == 1 else 's'}"
        but = f", but {pods} would have no place" if homeless else ""
        write(f"Mode {result.mode} would leave {saved} GPU{'' if saved == 1 else 's'} free{but}.\n")
    elif whole and result.mode is not None and result.mode.shared:
        write_text(
            "Pods with whole GPUs are assumed to need all of the memory. If they need less, use "
            "--need, such as --need 8GiB."
        )


def _use(nodes: "Sequence[NodeSummary]") -> tuple[int, int]:
    """Return the number of GPUs with pods, and the total number of GPUs."""
    gpus = [gpu for node in nodes for gpu in node.gpus]
    return sum(gpu.pods > 0 for gpu in gpus), len(gpus)


def _write_count(count: "Fit") -> None:
    each = "The pod fits" if count.pods == 1 else f"The {count.pods} pods fit"
    write(f"{each} {count.copies} more time{'' if count.copies == 1 else 's'}.\n")
    if count.nodes:
        write_table(
            [("NODE", "PODS"), *((name, str(pods)) for name, pods in sorted(count.nodes.items()))]
        )
    write_text(
        f"The next one does not fit: {count.stopped_by}"
        if count.stopped_by
        else "More copies were not counted."
    )


def _write_pods(outcomes: "Sequence[PodOutcome]") -> None:
    from gputile.tools.simulator.outcomes import merged_outcomes

    rows = [("NAMESPACE", "POD", "NODE", "GPU", "REASON")]
    for text in merged_outcomes(outcomes):
        outcome = text.outcome
        shares = outcome.allocation.gpus if outcome.allocation else ()
        gpus = ",".join(str(share.index) for share in shares) or "-"
        meta = outcome.pod.metadata
        name = meta.name + (f" and {len(text.others)} more" if text.others else "")
        rows.append((meta.namespace, name, outcome.node or "<none>", gpus, outcome.reason))
    write_table(rows)


def simulate_html(result: SimulationResult) -> str:
    """Return the HTML page of a simulation, with the reasons why pods were not placed."""
    from gputile.tools.simulator.outcomes import pods_after
    from gputile.tools.web.records import FeedStatus, PageAnswer
    from gputile.tools.web.state import PageState

    refused = [outcome for outcome in result.outcomes if outcome.node is None]
    reasons = {outcome.pod.key: outcome.reason for outcome in refused}
    pods = pods_after(result.scenario, result.outcomes, result.simulation)
    state = PageState(result.simulation.configuration)
    state.time_passed(time.time_ns())
    state.nodes_replaced(result.scenario.nodes)
    state.pods_replaced([*pods, *(outcome.pod for outcome in refused)])
    state.next_difference()
    page = state.page
    pending = [
        msgspec.structs.replace(pod, waits=reasons.get(key, pod.waits))
        for key, pod in page.pending.items()
    ]
    return html_file(
        PageAnswer(
            epoch="",
            revision=0,
            cluster="simulation",
            unit_mib=state.configuration.unit_mib,
            status=FeedStatus(),
            nodes=list(page.nodes.values()),
            pending=pending,
        )
    )


_IMPORT: Final = re.compile(r'^import \{[^}]*\} from "\./([\w.]+)";\n', re.MULTILINE)
_EXPORT: Final = re.compile(r"^export ", re.MULTILINE)
_LINKS: Final = re.compile(r'^<(?:link|script)\b[^\n]*"/(?:static|api)/[^\n]*\n', re.MULTILINE)


def html_file(page: "PageAnswer") -> str:
    """Return ``page`` as an HTML file whose Content-Security-Policy forbids loading anything."""
    from gputile.tools.web.app import assets

    files = assets()
    style, script = files["page.css"].body.decode(), one_script(files)
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; base-uri "
        "'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    head = (
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{style}</style>\n'
    )
    # Only a "<" in the data could end the script element.
    data = msgspec.json.encode(page).decode().replace("<", "\\u003c")
    tail = (
        f'<script type="application/json" id="gputile-data">{data}</script>\n<script '
        f'type="module">{script}</script>\n'
    )
    text = _LINKS.sub("", files["page.html"].body.decode())
    return text.replace("</head>", f"{head}</head>").replace("</body>", f"{tail}</body>")


def one_script(files: "Mapping[str, Asset]", first: str = "main.js") -> str:
    """Return the module ``first`` and all modules that it imports as one script.

    An imported module precedes the modules that import it. A test checks that no two modules define
    the same top-level name.
    """
    order: list[str] = []

    def add(name: str) -> None:
        if name in order:
            return
        for other in _IMPORT.findall(files[name].body.decode()):
            add(other)
        order.append(name)

    add(first)
    return "\n".join(_EXPORT.sub("", _IMPORT.sub("", files[name].body.decode())) for name in order)


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
