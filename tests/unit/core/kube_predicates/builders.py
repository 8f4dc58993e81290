"""Nodes and pods as kube-scheduler sees them, and its words."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import yaml

from gputile.api.core import Node, Pod
from gputile.core.refusal import PredicateRule, Refusal


def node(
    name: str = "n",
    labels: Mapping[str, str] | None = None,
    *,
    taints: Sequence[Mapping[str, str]] = (),
    unschedulable: bool = False,
    **offered: Any,
) -> Node:
    """A node that offers 64 CPU, 256 GiB and 110 pods, unless ``offered`` says otherwise; it may add resources."""
    amounts = {"cpu": 64, "memory": "256Gi", "pods": 110, **offered}
    body = {
        "metadata": {"name": name, "labels": dict(labels or {})},
        "spec": {"taints": [{"effect": "NoSchedule", **each} for each in taints], "unschedulable": unschedulable},
        "status": {"allocatable": {resource: str(amount) for resource, amount in amounts.items()}},
    }
    return msgspec.convert(body, Node)


def pod(spec: str = "{}", name: str = "p", labels: dict[str, str] | None = None, namespace: str = "default") -> Pod:
    """A pod of one container; ``spec`` is YAML of the spec's other fields."""
    fields = {"containers": [{"name": "c"}]} | yaml.safe_load(spec)
    for constraint in fields.get("topologySpreadConstraints", ()):
        for key, value in (("maxSkew", 1), ("whenUnsatisfiable", "DoNotSchedule")):
            constraint.setdefault(key, value)
    meta = {"name": name, "uid": name, "labels": labels or {}, "namespace": namespace}
    return msgspec.convert({"metadata": meta, "spec": fields}, Pod)


def said(refusal: Refusal[PredicateRule] | None) -> str | None:
    """Return the words of a refusal."""
    return refusal.text if refusal is not None else None


def all_said(refusals: Mapping[str, Refusal[PredicateRule] | None]) -> dict[str, str | None]:
    """Return the words of each node's refusal, by its name."""
    return {name: said(refusal) for name, refusal in refusals.items()}
