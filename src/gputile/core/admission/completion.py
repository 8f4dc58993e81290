"""Completes a GPU pod at admission: toleration, memory unit in force, scheduler and its gang's gate."""

from collections.abc import Sequence
from typing import Any, Final

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
from gputile.core.admission.gpu_requests import asks_for, asks_for_gpu, is_decided
from gputile.core.admission.legacy_forms import Rewriting
from gputile.core.admission.pod_view import PodView
from gputile.core.admission.verdict import Operation
from gputile.core.devices.gang_membership import labelled_size
from gputile.core.refusal import AdmissionRule, Refusal

DEFAULT_SCHEDULER: Final = "default-scheduler"  # Kubernetes' default of spec.schedulerName
_TOLERATION = {"key": WHOLE_GPU, "operator": "Exists", "effect": "NoSchedule"}


def tolerate(pod: Pod, rewriting: Rewriting, *, claims: bool = False) -> None:
    """Let a pod that asks for a GPU, or has ``claims``, tolerate the taint of GPU nodes (G7)."""
    tolerated = any(
        t.key in (WHOLE_GPU, "") and t.operator == "Exists" and t.effect in ("NoSchedule", "")
        for t in pod.spec.tolerations
    )
    if (claims or asks_for_gpu(pod)) and not tolerated:
        rewriting.operations.append(_append(pod.spec.tolerations, ("spec", "tolerations"), _TOLERATION))


def bring_to_extender(pod: Pod, rewriting: Rewriting) -> None:
    """Have kube-scheduler ask the extender about a pod with claims, by an amount of 0 of a resource that nobody has.

    kube-scheduler asks about pods whose resources have certain names, and looks at no amount then; kube-scheduler and
    kubelet skip resources of which a pod asks for 0. Which driver the claims are for is not known here.
    """
    if is_decided(pod):
        rewriting.warnings.append(
            "the pod asks for GPUs by extended resources and has resourceClaims: no node gives GPUs by both, so remove "
            "one of them if a claim is for GPUs"
        )
    resources = pod.spec.containers[0].resources if pod.spec.containers else None
    for kind, amounts in (("limits", resources.limits), ("requests", resources.requests)) if resources else ():
        path = ("spec", "containers", 0, "resources", kind)
        if CLAIMS_RESOURCE not in amounts:
            add = Operation("add", (*path, CLAIMS_RESOURCE), "0")
            rewriting.operations.append(add if amounts else Operation("add", path, {CLAIMS_RESOURCE: "0"}))


def stamp(pod: Pod, unit_mib: int, isolation: str, rewriting: Rewriting) -> None:
    """Write down which unit the pod's gpu-mem counts in, and the cluster's ``isolation`` where the pod says nothing.

    A later unit does not change what it asked for (U5, U9).
    """
    annotations, new = pod.metadata.annotations, dict[str, str]()
    if isolation != "none" and ISOLATION not in annotations and ISOLATION not in pod.metadata.labels:
        new[ISOLATION] = isolation
    stamped, unit = annotations.get(MEMORY_UNIT_ANNOTATION), str(unit_mib)
    counts_units = asks_for(pod, GPU_MEMORY)
    if counts_units and stamped is None:
        new[MEMORY_UNIT_ANNOTATION] = unit
    elif counts_units and stamped is not None and stamped != unit:
        rule = (
            f"metadata.annotations[{MEMORY_UNIT_ANNOTATION}] is {stamped[:20]!r}, and the unit in force is {unit} MiB: "
            f"remove the annotation, it is written when the pod is created"
        )
        rewriting.refusals.append(Refusal(AdmissionRule.UNIT, rule))
    path = ("metadata", "annotations")
    # an earlier operation may remove the last annotation, but never the map itself
    if annotations:
        rewriting.operations += [Operation("add", (*path, name), value) for name, value in new.items()]
    elif new:
        rewriting.operations.append(Operation("add", path, new))


def assign(pod: Pod, scheduler: str, rewriting: Rewriting) -> None:
    """Give the pod to gputile's own scheduler, unless it names another than the cluster's; "" leaves it as it is."""
    if scheduler and pod.spec.scheduler_name in ("", DEFAULT_SCHEDULER):
        rewriting.operations.append(Operation("add", ("spec", "schedulerName"), scheduler))


def gate(pod: Pod, view: PodView, rewriting: Rewriting) -> None:
    """Hold the pod of a gang back until its gang has been planned as a whole (M13)."""
    if not _in_gang(pod, rewriting):
        return
    if not view.gated:
        gates = view.spec.scheduling_gates
        rewriting.operations.append(_append(gates, ("spec", "schedulingGates"), {"name": GANG_GATE}))


def _in_gang(pod: Pod, rewriting: Rewriting) -> bool:
    """Return whether the labels put a pod into a gang; a PodGroup, where there is one, tells the size."""
    labels = pod.metadata.labels
    if labels.get(POD_GROUP_LABEL):
        return True
    name, size = labels.get(GANG_NAME_LABEL), labels.get(GANG_SIZE_LABEL)
    if name is None and size is None:
        return False
    if not name or size is None:
        missing = GANG_SIZE_LABEL if name else GANG_NAME_LABEL
        rewriting.warnings.append(f"the pod is scheduled alone, not in a gang: the label {missing} is missing; add it")
        return False
    if not labelled_size(pod):
        rule = f"metadata.labels[{GANG_SIZE_LABEL}] is {size[:20]!r}: write how many pods start together, 1 or more"
        rewriting.refusals.append(Refusal(AdmissionRule.GANG, rule))
        return False
    return True


def _append(current: Sequence[Any], path: tuple[str, ...], value: Any) -> Operation:
    """Return the operation that appends to a list which, when it is empty, may not be there."""
    return Operation("add", (*path, "-"), value) if current else Operation("add", path, [value])
