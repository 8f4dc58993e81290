"""Checks PodGroups as their CustomResourceDefinition does.

Source: kubernetes-sigs/scheduler-plugins, apis/scheduling/v1alpha1.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from gputile.api.wording import nearest
from gputile.tools.simulator.rules.values.fields import Broken
from gputile.tools.simulator.rules.values.numbers import broken_least

_OBJECT: Final = ("apiVersion", "kind", "metadata", "spec", "status")
_SPEC: Final = ("minMember", "minResources", "scheduleTimeoutSeconds")


def unknown_fields(body: Mapping[str, Any]) -> Iterator[Broken]:
    """Yield the fields that a PodGroup does not have."""
    for place, known, prefix in ((body, _OBJECT, ""), (body.get("spec", {}), _SPEC, "spec.")):
        for name in place:
            if name not in known:
                yield f"{prefix}{name[:60]}", f"unknown field{nearest(name, known)}"


def broken_pod_group(body: Mapping[str, Any]) -> Iterator[Broken]:
    """Yield what is wrong with the values of a PodGroup whose fields are of their types."""
    yield from broken_least("spec", body.get("spec", {}), 1, "minMember")
