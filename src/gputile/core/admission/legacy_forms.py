"""Converts legacy settings to their current equivalents, in live and simulated pods.

Each rule reads the pod and returns operations of a JSON patch (RFC 6902). A converted pod needs no
operations, so it is safe to convert a pod twice.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from gputile.api.affinity import Affinity, NodeSelectorTerm
from gputile.api.conversion import decode
from gputile.api.core import Container, Pod
from gputile.api.well_known import (
    LEGACY_AFFINITY_ANNOTATION,
    LEGACY_GPU,
    LEGACY_MODEL_LABEL,
    WHOLE_GPU,
)
from gputile.core.devices.inventory import model_label_value
from gputile.core.devices.request import gpu_resources_of
from gputile.core.refusal import AdmissionRule, Refusal


@dataclass(frozen=True, slots=True)
class Operation:
    """A JSON patch operation. ``path`` lists keys and indices. A final "-" appends to a list."""

    op: Literal["add", "remove", "replace"]
    path: tuple[str | int, ...]
    value: Any = None


def encode_patch(operations: Iterable[Operation]) -> bytes:
    changes: list[dict[str, Any]] = []
    for operation in operations:
        steps = (str(step).replace("~", "~0").replace("/", "~1") for step in operation.path)
        changes.append({"op": operation.op, "path": "".join(f"/{step}" for step in steps)})
        if operation.op != "remove":
            changes[-1]["value"] = operation.value
    return msgspec.json.encode(changes)


def apply_patch(operations: Iterable[Operation], document: Any) -> Any:
    """Return a copy of ``document`` with the operations applied in order.

    Raises:
        LookupError: the document lacks a value that an operation needs.
    """
    for operation in operations:
        document = _applied(operation, operation.path, document)
    return document


def _applied(operation: Operation, path: tuple[str | int, ...], node: Any) -> Any:
    """Return a copy of ``node`` with the change at ``path``. The copy shares unchanged parts."""
    step, rest = path[0], path[1:]
    if isinstance(node, list | tuple):
        index = len(node) if step == "-" else int(step)
        if rest:
            return [*node[:index], _applied(operation, rest, node[index]), *node[index + 1 :]]
        after = node[index:] if operation.op == "add" else node[index + 1 :]
        return [*node[:index], *([] if operation.op == "remove" else [operation.value]), *after]
    if rest:
        return node | {step: _applied(operation, rest, node[step])}
    if operation.op != "add" and step not in node:
        raise KeyError(step)
    if operation.op == "remove":
        return {key: value for key, value in node.items() if key != step}
    return node | {step: operation.value}


_AFFINITY_PATH = ("spec", "affinity")
_LONGEST_AFFINITY = 64 * 1024  # characters, more than any real rule has
_AFFINITY = msgspec.json.Decoder(Affinity)
# Decodes the affinity as written, including fields that gputile does not read
_ANYTHING = msgspec.json.Decoder(Any)


@dataclass(slots=True)
class Rewriting:
    """The changes to a pod, with warnings for its author and the reasons to refuse it.

    ``affinity`` is the affinity of the pod after the changes.
    """

    affinity: Affinity | None = None
    operations: list[Operation] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    refusals: list[Refusal[AdmissionRule]] = field(default_factory=list)


def rewrite(pod: Pod) -> Rewriting:
    """Convert the legacy settings of ``pod``, whether or not the pod requests a GPU."""
    rewriting = Rewriting()
    affinity = _legacy_affinity(pod, rewriting)
    rewriting.affinity = affinity or pod.spec.affinity
    rewriting.operations += _model_names(pod, rewriting.affinity)
    _legacy_resources(pod, rewriting)
    return rewriting


def _legacy_affinity(pod: Pod, rewriting: Rewriting) -> Affinity | None:
    """Move the affinity from the annotation of Kubernetes 1.5 and earlier to spec.affinity (L4)."""
    text = pod.metadata.annotations.get(LEGACY_AFFINITY_ANNOTATION)
    if text is None:
        return None
    where = f"metadata.annotations[{LEGACY_AFFINITY_ANNOTATION}]"
    remove = Operation("remove", ("metadata", "annotations", LEGACY_AFFINITY_ANNOTATION))
    if pod.spec.affinity is not None:
        rewriting.warnings.append(
            f"{where} is ignored, since spec.affinity is set and takes precedence: remove it"
        )
        rewriting.operations.append(remove)
        return None
    try:
        if len(text) > _LONGEST_AFFINITY:
            raise ValueError(f"it has {len(text)} characters, more than {_LONGEST_AFFINITY}")
        affinity = decode(text, _AFFINITY)
    except ValueError as error:
        rule = f"{where}: the affinity in it cannot be read: {error}; write it as spec.affinity"
        rewriting.refusals.append(Refusal(AdmissionRule.LEGACY_AFFINITY, rule))
        return None
    rewriting.warnings.append(f"{where} is read as spec.affinity: write it there")
    rewriting.operations += [Operation("add", _AFFINITY_PATH, decode(text, _ANYTHING)), remove]
    return affinity


def _legacy_resources(pod: Pod, rewriting: Rewriting) -> None:
    """Rename the GPU resource to its current name (L3), unless a container uses both names."""
    found = False
    for kind, containers in (
        ("initContainers", pod.spec.init_containers),
        ("containers", pod.spec.containers),
    ):
        for index, container in enumerate(containers):
            operations = list(_renamed(container, ("spec", kind, index, "resources")))
            found = found or bool(operations)
            rewriting.operations += operations
    if found:
        what = f"{LEGACY_GPU} is the old name of {WHOLE_GPU}, and is renamed: write the new name"
        rewriting.warnings.append(f"spec.containers[*].resources: {what}")


def _renamed(container: Container, path: tuple[str | int, ...]) -> Iterator[Operation]:
    asked = set(gpu_resources_of(container))
    if LEGACY_GPU in asked and WHOLE_GPU in asked:
        return  # refused elsewhere, since the pod may mean either name
    for section, amounts in (
        ("limits", container.resources.limits),
        ("requests", container.resources.requests),
    ):
        if LEGACY_GPU in amounts:
            # If the new name has an amount, the "0" under the old name is only removed
            if WHOLE_GPU not in asked:
                yield Operation("add", (*path, section, WHOLE_GPU), amounts[LEGACY_GPU])
            yield Operation("remove", (*path, section, LEGACY_GPU))


def _model_names(pod: Pod, affinity: Affinity | None) -> Iterator[Operation]:
    """Convert GPU model names to label values: "Tesla K80" becomes "Tesla-K80" (C3)."""
    model = pod.spec.node_selector.get(LEGACY_MODEL_LABEL)
    if model is not None and model_label_value(model) != model:
        yield Operation(
            "replace", ("spec", "nodeSelector", LEGACY_MODEL_LABEL), model_label_value(model)
        )
    nodes = affinity.node_affinity if affinity is not None else None
    if nodes is None:
        return
    base = (*_AFFINITY_PATH, "nodeAffinity")
    if nodes.required is not None:
        required = (*base, "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
        for i, term in enumerate(nodes.required.node_selector_terms):
            yield from _term_models(term, (*required, i))
    for i, preferred in enumerate(nodes.preferred):
        where = (*base, "preferredDuringSchedulingIgnoredDuringExecution", i, "preference")
        yield from _term_models(preferred.preference, where)


def _term_models(term: NodeSelectorTerm, path: tuple[str | int, ...]) -> Iterator[Operation]:
    for i, requirement in enumerate(term.match_expressions):
        if requirement.key == LEGACY_MODEL_LABEL:
            values = [model_label_value(value) for value in requirement.values]
            if values != list(requirement.values):
                yield Operation("replace", (*path, "matchExpressions", i, "values"), values)
