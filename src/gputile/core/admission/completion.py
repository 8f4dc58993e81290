"""Completes a GPU pod at admission.

It sets toleration, memory unit, isolation, scheduler, scheduling gate and node affinity.

Node affinity excludes node types that could never run the pod (U8). An autoscaler would otherwise
add such nodes, since it compares requests only with a node's totals. For example, a request for 20
units fits the total of four GPUs with 15 units each, but fits none of these GPUs.

A pod is refused here if it sets a memory unit that differs from the cluster's, or an invalid gang
size. ``isolation_bypass`` and ``devices.request`` decide on other refusals.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from msgspec.structs import replace

from gputile.api.affinity import Affinity, NodeSelectorRequirement
from gputile.api.core import Pod
from gputile.api.well_known import (
    CLAIMS_RESOURCE,
    GANG_GATE,
    GANG_NAME_LABEL,
    GANG_SIZE_LABEL,
    GPU_MEMORY,
    ISOLATION,
    MEMORY_UNIT_ANNOTATION,
    POD_GROUP_LABEL,
    WHOLE_GPU,
)
from gputile.core.admission.legacy_forms import Operation, Rewriting
from gputile.core.admission.pod_view import PodView
from gputile.core.devices.gang_membership import labelled_size
from gputile.core.devices.node_type import NodeType, refusals_text
from gputile.core.devices.request import (
    RequestError,
    parse_request,
    requests_gpu,
    requests_gputile_gpu,
    requests_resource,
)
from gputile.core.refusal import AdmissionRule, Refusal

DEFAULT_SCHEDULER: Final = "default-scheduler"  # Kubernetes' default of spec.schedulerName
_TOLERATION = {"key": WHOLE_GPU, "operator": "Exists", "effect": "NoSchedule"}


def add_toleration(pod: Pod, rewriting: Rewriting, *, claims: bool = False) -> None:
    """Tolerate the taint of GPU nodes if the pod requests a GPU or has ``claims`` (G7)."""
    tolerated = any(
        t.key in (WHOLE_GPU, "") and t.operator == "Exists" and t.effect in ("NoSchedule", "")
        for t in pod.spec.tolerations
    )
    if (claims or requests_gpu(pod)) and not tolerated:
        rewriting.operations.append(
            _append(pod.spec.tolerations, ("spec", "tolerations"), _TOLERATION)
        )


def add_claims_resource(pod: Pod, rewriting: Rewriting) -> None:
    """Make kube-scheduler call the extender for a pod with claims.

    kube-scheduler calls an extender only for pods that request certain resources, even if the
    amount is 0. So the pod gets a request for 0 of a resource that no node has. The request has no
    other effect on kube-scheduler and the kubelet. Which driver serves a claim is not known at
    admission, so a claim of any driver counts.
    """
    if requests_gputile_gpu(pod):
        rewriting.warnings.append(
            "the pod requests GPUs as extended resources and has resourceClaims: no node offers "
            "GPUs by both, so remove one of the two if a claim is for GPUs"
        )
    resources = pod.spec.containers[0].resources if pod.spec.containers else None
    for kind, amounts in (
        (("limits", resources.limits), ("requests", resources.requests)) if resources else ()
    ):
        path = ("spec", "containers", 0, "resources", kind)
        if CLAIMS_RESOURCE not in amounts:
            add = Operation("add", (*path, CLAIMS_RESOURCE), "0")
            rewriting.operations.append(
                add if amounts else Operation("add", path, {CLAIMS_RESOURCE: "0"})
            )


def set_unit_and_isolation(pod: Pod, unit_mib: int, isolation: str, rewriting: Rewriting) -> Pod:
    """Record the memory unit, and set ``isolation`` if the pod does not set it. Return the pod.

    If the cluster's unit changes later, the pod's request does not change (U5, U9).
    """
    annotations, new = pod.metadata.annotations, dict[str, str]()
    if (
        isolation != "none"
        and ISOLATION not in annotations
        and ISOLATION not in pod.metadata.labels
    ):
        new[ISOLATION] = isolation
    stamped, unit = annotations.get(MEMORY_UNIT_ANNOTATION), str(unit_mib)
    counts_units = requests_resource(pod, GPU_MEMORY)
    if counts_units and stamped is None:
        new[MEMORY_UNIT_ANNOTATION] = unit
    elif counts_units and stamped is not None and stamped != unit:
        rule = (
            f"metadata.annotations[{MEMORY_UNIT_ANNOTATION}] is {stamped[:20]!r}, but the unit in "
            f"force is {unit} MiB: remove the annotation, which gputile sets at creation"
        )
        rewriting.refusals.append(Refusal(AdmissionRule.UNIT, rule))
    path = ("metadata", "annotations")
    # An earlier operation may remove the last annotation, but never the map itself
    if annotations:
        rewriting.operations += [
            Operation("add", (*path, name), value) for name, value in new.items()
        ]
    elif new:
        rewriting.operations.append(Operation("add", path, new))
    return replace(pod, metadata=replace(pod.metadata, annotations={**annotations, **new}))


def set_scheduler(pod: Pod, scheduler: str, rewriting: Rewriting) -> None:
    """Replace the default scheduler of the pod with ``scheduler``, unless ``scheduler`` is ""."""
    if scheduler and pod.spec.scheduler_name in ("", DEFAULT_SCHEDULER):
        rewriting.operations.append(Operation("add", ("spec", "schedulerName"), scheduler))


def add_gang_gate(pod: Pod, view: PodView, rewriting: Rewriting) -> None:
    """Add a scheduling gate that delays a pod of a gang until the whole gang is planned (M13)."""
    if not _in_gang(pod, rewriting):
        return
    if not view.gated:
        gates = view.spec.scheduling_gates
        rewriting.operations.append(
            _append(gates, ("spec", "schedulingGates"), {"name": GANG_GATE})
        )


def _in_gang(pod: Pod, rewriting: Rewriting) -> bool:
    """Return whether the labels put a pod into a gang. Report missing or invalid labels."""
    labels = pod.metadata.labels
    if labels.get(POD_GROUP_LABEL):
        return True
    name, size = labels.get(GANG_NAME_LABEL), labels.get(GANG_SIZE_LABEL)
    if name is None and size is None:
        return False
    if not name or size is None:
        missing = GANG_SIZE_LABEL if name else GANG_NAME_LABEL
        rewriting.warnings.append(
            f"the pod is scheduled alone, not in a gang: the label {missing} is missing; add it"
        )
        return False
    if not labelled_size(pod):
        rule = (
            f"metadata.labels[{GANG_SIZE_LABEL}] is {size[:20]!r}: write how many pods start "
            f"together, 1 or more"
        )
        rewriting.refusals.append(Refusal(AdmissionRule.GANG, rule))
        return False
    return True


def _append(current: Sequence[Any], path: tuple[str, ...], value: Any) -> Operation:
    """Return the operation that appends ``value`` to a list, or creates the list if necessary."""
    return Operation("add", (*path, "-"), value) if current else Operation("add", path, [value])


_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_MOST_ADDED: Final = 4096  # requirements over all terms. Each is written into the pod
_NODE_AFFINITY: Final = ("spec", "affinity", "nodeAffinity")


def exclude_node_types(
    pod: Pod, types: Sequence[NodeType], unit_mib: int, rewriting: Rewriting
) -> None:
    """Add node affinity that excludes each of ``types`` whose nodes could never run the pod."""
    try:
        request = parse_request(pod, unit_mib)
    except RequestError:
        return  # the pod is refused elsewhere
    if request is None:
        return
    refusals = [(kind, refusal) for kind in types if (refusal := kind.refusal(request)) is not None]
    if len(refusals) == len(types):
        whys = refusals_text({kind.name: refusal for kind, refusal in refusals})
        rewriting.warnings.append(f"no node that the autoscaler can add could run the pod: {whys}")
    wanted = [
        NodeSelectorRequirement(key=kind.key, operator="NotIn", values=(kind.value,))
        for kind, _ in refusals
    ]
    affinity = rewriting.affinity.node_affinity if rewriting.affinity is not None else None
    terms = (
        len(affinity.required.node_selector_terms)
        if affinity is not None and affinity.required is not None
        else 1
    )
    if terms * len(wanted) > _MOST_ADDED:
        why = (
            f"its {terms} terms of node affinity are too many: an autoscaler may add nodes that "
            f"cannot run it"
        )
        rewriting.warnings.append(
            f"node types that could never run the pod are not excluded, since {why}"
        )
    elif wanted:
        rewriting.operations += _operations(rewriting.affinity, wanted)


def _operations(
    affinity: Affinity | None, wanted: Sequence[NodeSelectorRequirement]
) -> Iterator[Operation]:
    """Yield operations that add ``wanted`` to each term, since a node needs to match only one."""
    required: dict[str, Any] = {
        "nodeSelectorTerms": [{"matchExpressions": [_as_json(each) for each in wanted]}]
    }
    if affinity is None:
        yield Operation("add", _NODE_AFFINITY[:2], {"nodeAffinity": {_REQUIRED: required}})
    elif affinity.node_affinity is None:
        yield Operation("add", _NODE_AFFINITY, {_REQUIRED: required})
    elif affinity.node_affinity.required is None:
        yield Operation("add", (*_NODE_AFFINITY, _REQUIRED), required)
    else:
        for i, term in enumerate(affinity.node_affinity.required.node_selector_terms):
            path = (*_NODE_AFFINITY, _REQUIRED, "nodeSelectorTerms", i, "matchExpressions")
            missing = [_as_json(each) for each in wanted if each not in term.match_expressions]
            if term.match_expressions:
                yield from (Operation("add", (*path, "-"), each) for each in missing)
            elif term.match_fields and missing:  # a term without requirements matches no node
                yield Operation("add", path, missing)


def _as_json(requirement: NodeSelectorRequirement) -> dict[str, Any]:
    return {
        "key": requirement.key,
        "operator": requirement.operator,
        "values": list(requirement.values),
    }
