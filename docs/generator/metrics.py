"""Lists the metrics, from the calls in the code that create them."""

import ast
from collections.abc import Iterator
from typing import NamedTuple

from docs.generator.source import calls, modules
from docs.generator.tables import code, table

_TYPES = {
    "Counter": "counter",
    "CounterMetricFamily": "counter",
    "Gauge": "gauge",
    "GaugeMetricFamily": "gauge",
    "Histogram": "histogram",
    "counter": "counter",
    "gauge": "gauge",
    "labelled": "gauge",
    "labelled_counter": "counter",
}
_OF_EACH = "{component}"
# By module of shared code: the function whose callers pass the prefix of a metric, and the index of
# the argument with the prefix.
_CALLERS = {"telemetry": ("LoopLag", 0), "reflector": ("export_reflectors", 1)}
# The controller and the simulator have a ledger too, but only the extender exports its metrics.
_EXPORTERS = {"ledger": "extender"}


class MetricEntry(NamedTuple):
    """The name, type, labels and help of a metric, and the component that exports the metric."""

    name: str
    type: str
    labels: tuple[str, ...]
    help: str
    component: str


def render() -> str:
    """Return the table of all metrics."""
    rows = [
        (code(each.name), each.type, ", ".join(map(code, each.labels)), each.help, each.component)
        for each in entries()
    ]
    return table(("metric", "type", "labels", "meaning", "component"), rows)


def entries() -> list[MetricEntry]:
    """Return all metrics, sorted by component and name."""
    return sorted(_found(), key=lambda entry: (entry.component, entry.name))


def _found() -> Iterator[MetricEntry]:
    partials = _partials()
    for path, name_of_call, call in calls():
        called, given = partials.get(name_of_call, (name_of_call, call))
        if called not in _TYPES or len(call.args) < 2:
            continue
        name = _text(call.args[0])
        if not name.startswith("gputile_"):
            continue
        kind = _TYPES[called]
        if kind == "counter":
            name = name.removesuffix("_total") + "_total"
        for component in (
            _components(*_CALLERS[path.stem]) if _OF_EACH in name else [name.split("_")[1]]
        ):
            yield MetricEntry(
                name.replace(_OF_EACH, component),
                kind,
                _labels(called, given),
                _text(call.args[1]),
                _EXPORTERS.get(component, component),
            )


def _partials() -> dict[str, tuple[str, ast.Call]]:
    """Return the called name and the call of each ``partial``, by the name that is assigned."""
    return {
        ast.unparse(node.targets[0]): (ast.unparse(node.value.args[0]), node.value)
        for module in modules().values()
        for node in module.body
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and ast.unparse(node.value.func) == "partial"
    }


def _components(function: str, position: int) -> list[str]:
    named = (
        call.args[position]
        for _, called, call in calls()
        if called == function and len(call.args) > position
    )
    return sorted({str(name.value) for name in named if isinstance(name, ast.Constant)})


def _labels(called: str, call: ast.Call) -> tuple[str, ...]:
    if called in ("labelled", "labelled_counter"):
        return (_text(call.args[2]),)
    given = [word.value for word in call.keywords if word.arg in ("labels", "labelnames")]
    if called in ("Counter", "Gauge", "Histogram"):
        given += call.args[2:3]
    return tuple(_text(item) for sequence in given for item in getattr(sequence, "elts", ()))


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_text, node.values))
    if isinstance(node, ast.FormattedValue):
        return "{" + ast.unparse(node.value) + "}"
    return ""
