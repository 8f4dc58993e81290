"""Exports what reflectors count, as metrics of the component that they keep informed."""

from collections.abc import Mapping
from typing import Any

from gputile.kube.watching.reflector import Reflector
from gputile.support.metrics import MetricsRegistry, Values


def export_reflectors(registry: MetricsRegistry, component: str, reflectors: Mapping[str, Reflector[Any]]) -> None:
    """Export ``gputile_<component>_reflector_<count>_total{resource}`` of ``reflectors``, by their resources."""
    registry.labelled_counter(
        f"gputile_{component}_reflector_lists",
        "Complete lists read from the API server; more than a few mean that watches cannot go on.",
        "resource",
        _values(reflectors, "lists"),
    )
    registry.labelled_counter(
        f"gputile_{component}_reflector_failures",
        "Lists and watches that failed and were tried again.",
        "resource",
        _values(reflectors, "failures"),
    )
    registry.labelled_counter(
        f"gputile_{component}_reflector_unreadable",
        "Objects from the API server that cannot be read and are ignored.",
        "resource",
        _values(reflectors, "unreadable"),
    )


def _values(reflectors: Mapping[str, Reflector[Any]], count: str) -> Values:
    return lambda: ((resource, getattr(each.counts, count)) for resource, each in reflectors.items())
