"""Decides for the API server whether an object may be stored, and with which changes.

Other users must not change allocations (B2, B9) or which pods start together (M13). The extender
never binds a pod of a gang without a reservation, even if the pod has no gate. So removing a gate
by hand would not start the pod, and would hide why the pod is pending. Changed labels would put the
pod into another gang, or into none. The rules are in ``isolation_bypass``, ``legacy_forms`` and
``completion``.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeVar

import msgspec

from gputile.api.config.v1alpha1 import GpuTime
from gputile.api.conversion import ConversionError, decode, has_more_items
from gputile.api.core import Pod
from gputile.api.quantity import parse_active_threads, parse_weight
from gputile.api.webhooks import AdmissionRequest
from gputile.api.well_known import (
    ACK_ALLOCATION,
    ALLOCATION_ANNOTATION,
    GANG_GATE,
    GANG_NAME_LABEL,
    GANG_SIZE_LABEL,
    GPU_COUNT_LABEL,
    GPUSHARE_PREFIX,
    MEMORY_UNIT_ANNOTATION,
    MIRROR_ANNOTATION,
    MPS_THREADS_ANNOTATION,
    POD_GROUP_LABEL,
    RESERVATION_ANNOTATION,
    TIME_WEIGHT_ANNOTATION,
)
from gputile.core.admission.completion import (
    add_claims_resource,
    add_gang_gate,
    add_toleration,
    exclude_node_types,
    set_scheduler,
    set_unit_and_isolation,
)
from gputile.core.admission.isolation_bypass import access_refusals
from gputile.core.admission.legacy_forms import Operation, rewrite
from gputile.core.admission.pod_view import PodView
from gputile.core.devices.node_type import NodeType
from gputile.core.devices.request import (
    RequestError,
    parse_request,
    requests_gpu,
    requests_gputile_gpu,
)
from gputile.core.refusal import AdmissionRule, Refusal

MOST_SHOWN: Final = 12
# A pod may have thousands of mistakes, which take time to find. Nobody reads them all.
MOST_FOUND: Final = 50
PROTECTED: Final = (ALLOCATION_ANNOTATION, ACK_ALLOCATION, RESERVATION_ANNOTATION)
PROTECTED_PREFIX: Final = GPUSHARE_PREFIX
# Set when a pod is created. Later, only gputile's Binding and corrections change it.
STAMPED: Final = MEMORY_UNIT_ANNOTATION
# The labels that put a pod into a gang
FIXED: Final = (GANG_NAME_LABEL, GANG_SIZE_LABEL, POD_GROUP_LABEL)
_ALONE: Final = "to start the pod alone, delete it and create it without the labels of a gang"
DEFAULT_TIME: Final = GpuTime()
# The limit for an object as JSON, enough for all allowed annotations and managedFields
MOST_ITEMS: Final = 40_960
NODES_GROUP: Final = "system:nodes"  # Kubernetes' group of the kubelets

_POD = msgspec.json.Decoder(Pod)
_VIEW = msgspec.json.Decoder(PodView)

T = TypeVar("T")


class UnreadableReview(ValueError):
    """The object in a request cannot be decoded as the kind that the request names."""


@dataclass(frozen=True, slots=True)
class AdmissionPolicy:
    """The cluster's settings for admission."""

    unit_mib: int  # the memory unit in force
    trusted: Collection[str]  # the users that may write allocations
    gangs: bool = False  # whether pods of gangs get a scheduling gate
    unsafe_access: bool = False  # whether the namespace allows GPU use without an allocation
    scheduler: str = ""  # for pods that name no scheduler
    time: GpuTime = DEFAULT_TIME  # the sharing of GPU time, and the allowed weights
    node_types: Sequence[NodeType] = ()  # excluded for pods that they could never run
    claims: bool = False  # whether nodes may offer GPUs by ResourceClaims
    isolation: str = "none"  # for pods that set no isolation


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a review.

    If there are refusals, the object is refused. Otherwise the operations change the object.
    """

    operations: tuple[Operation, ...] = ()
    warnings: tuple[str, ...] = ()
    refusals: tuple[Refusal[AdmissionRule], ...] = ()


ALLOWED: Final = Verdict()
_TOO_LARGE_TEXT = (
    f"the object has more than {MOST_ITEMS} fields and entries of lists, labels and annotations, "
    "which is too many to review: write fewer"
)
TOO_LARGE: Final = Verdict(refusals=(Refusal(AdmissionRule.POD, _TOO_LARGE_TEXT),))


def mutate(request: AdmissionRequest, policy: AdmissionPolicy) -> Verdict:
    """Return the changes to a new pod, or all reasons to refuse the pod.

    Raises:
        UnreadableReview: the object cannot be decoded as a Pod.
    """
    if not _is_pod(request) or request.operation != "CREATE" or request.sub_resource:
        return ALLOWED
    if _has_too_many_items(request.object):
        return TOO_LARGE
    pod, view = _decoded(request.object, _POD), _decoded(request.object, _VIEW)
    if _is_mirror(pod, request):
        return ALLOWED
    rewriting = rewrite(pod)
    claims = policy.claims and bool(pod.spec.resource_claims)
    add_toleration(pod, rewriting, claims=claims)
    if claims:
        add_claims_resource(pod, rewriting)
    if claims or requests_gputile_gpu(pod):
        set_scheduler(pod, policy.scheduler, rewriting)
    if requests_gputile_gpu(pod):
        stamped = set_unit_and_isolation(pod, policy.unit_mib, policy.isolation, rewriting)
        if policy.gangs:
            add_gang_gate(pod, view, rewriting)
        if policy.node_types:
            exclude_node_types(stamped, policy.node_types, policy.unit_mib, rewriting)
    # Refusals are found in the pod as its author wrote it, so that they name the author's fields
    refusals = (*rewriting.refusals, *_broken(pod, view, request, policy))
    warnings = tuple(rewriting.warnings)
    return (
        Verdict(warnings=warnings, refusals=refusals)
        if refusals
        else Verdict(tuple(rewriting.operations), warnings)
    )


def validate(request: AdmissionRequest, policy: AdmissionPolicy) -> Verdict:
    """Return all reasons to refuse a new pod (after mutation), a changed pod, or a Binding.

    Raises:
        UnreadableReview: the object cannot be decoded as a Pod or a Binding.
    """
    is_binding = request.operation == "CREATE" and request.kind.kind == "Binding"
    if (is_binding or _is_pod(request)) and _has_too_many_items(request.object, request.old_object):
        return TOO_LARGE
    if is_binding:
        binding = _decoded(request.object, _VIEW)
        return Verdict(refusals=tuple(_binding_refusals(binding, request, policy)))
    if not _is_pod(request):
        return ALLOWED
    if request.operation == "CREATE" and not request.sub_resource:
        pod, view = _decoded(request.object, _POD), _decoded(request.object, _VIEW)
        return Verdict(refusals=tuple(_broken(pod, view, request, policy)))
    if request.operation == "UPDATE":
        return Verdict(refusals=tuple(_change_refusals(request, policy)))
    return ALLOWED


def _broken(
    pod: Pod, view: PodView, request: AdmissionRequest, policy: AdmissionPolicy
) -> list[Refusal[AdmissionRule]]:
    user = request.user_info.username
    refusals = (
        []
        if user in policy.trusted
        else annotation_refusals({}, pod.metadata.annotations, user, is_new=True)
    )
    if _is_mirror(pod, request):
        return refusals
    try:
        parse_request(pod, policy.unit_mib)
    except RequestError as error:
        refusals.append(Refusal(AdmissionRule.AMOUNT, str(error)))
    if requests_gpu(pod):
        refusals += share_refusals(
            pod.metadata.annotations, policy.time.most_weight(request.namespace)
        )
    if not policy.unsafe_access:
        refusals += islice(access_refusals(view, gpu=_may_use_gpus(pod, policy)), MOST_FOUND)
    return refusals


def _binding_refusals(
    binding: PodView, request: AdmissionRequest, policy: AdmissionPolicy
) -> list[Refusal[AdmissionRule]]:
    user, meta = request.user_info.username, binding.metadata
    refusals = []
    if user not in policy.trusted:
        refusals += annotation_refusals({}, meta.annotations, user) + count_change_refusals(
            {}, meta.labels
        )
        # The API server itself protects this annotation on every other write
        if MIRROR_ANNOTATION in meta.annotations:
            rule = (
                f"metadata.annotations[{MIRROR_ANNOTATION}]: only a kubelet says which pods are "
                "static: leave it out"
            )
            refusals.append(Refusal(AdmissionRule.FORGED, rule))
    refusals += share_refusals(meta.annotations, policy.time.most_weight(request.namespace))
    if not policy.unsafe_access:
        refusals += islice(access_refusals(PodView(metadata=meta), gpu=False), MOST_FOUND)
    return refusals


def _change_refusals(
    request: AdmissionRequest, policy: AdmissionPolicy
) -> list[Refusal[AdmissionRule]]:
    """Return a refusal for each rule that a change breaks. Only what has changed is reviewed."""
    old, new = _decoded(request.old_object, _VIEW), _decoded(request.object, _VIEW)
    added = _added(old, new)
    user = request.user_info.username
    refusals = []
    if user not in policy.trusted:
        refusals += annotation_refusals(old.metadata.annotations, new.metadata.annotations, user)
        refusals += count_change_refusals(old.metadata.labels, new.metadata.labels)
    if policy.gangs:
        refusals += gang_change_refusals(old, new, user, policy.trusted)
    if added != PodView():
        pod = _decoded(request.object, _POD)
        if requests_gpu(pod):
            refusals += share_refusals(
                added.metadata.annotations, policy.time.most_weight(request.namespace)
            )
        if not policy.unsafe_access:
            refusals += islice(access_refusals(added, gpu=_may_use_gpus(pod, policy)), MOST_FOUND)
    return refusals


def _may_use_gpus(pod: Pod, policy: AdmissionPolicy) -> bool:
    """Return whether a pod requests a GPU, or has claims, which may be for GPUs."""
    return requests_gpu(pod) or (policy.claims and bool(pod.spec.resource_claims))


def _added(old: PodView, new: PodView) -> PodView:
    """Return the ephemeral containers and annotations that a change adds.

    No other field of ``PodView`` can add a way to use GPUs after the pod is created.
    """
    known = {container.name for container in old.spec.ephemeral_containers}
    added = PodView()
    added.spec.ephemeral_containers = tuple(
        c for c in new.spec.ephemeral_containers if c.name not in known
    )
    added.metadata.annotations = dict(
        new.metadata.annotations.items() - old.metadata.annotations.items()
    )
    return added


def _has_too_many_items(*objects: msgspec.Raw) -> bool:
    """Return whether an object has more than ``MOST_ITEMS`` items. The objects are not decoded."""
    return any(has_more_items(bytes(each), MOST_ITEMS) for each in objects)


def _is_pod(request: AdmissionRequest) -> bool:
    return request.kind.kind == "Pod" and not request.kind.group


def _is_mirror(pod: Pod, request: AdmissionRequest) -> bool:
    """Return whether the pod mirrors a static pod, which its kubelet has already started."""
    return MIRROR_ANNOTATION in pod.metadata.annotations and NODES_GROUP in request.user_info.groups


def _decoded(raw: msgspec.Raw, decoder: "msgspec.json.Decoder[T]") -> T:
    try:
        return decode(raw, decoder)
    except ConversionError as error:
        raise UnreadableReview(str(error)) from error


def unreadable(error: UnreadableReview) -> Refusal[AdmissionRule]:
    return Refusal(AdmissionRule.POD, f"the pod cannot be read: {error}; correct the field")


def message(refusals: Sequence[Refusal[AdmissionRule]]) -> str:
    """Return the text for the user, with at most ``MOST_SHOWN`` refusals."""
    shown = [f"{refusal.text} [{refusal.rule}]" for refusal in refusals[:MOST_SHOWN]]
    if len(refusals) > MOST_SHOWN:
        shown.append("and more")
    return f"gputile: {'; '.join(shown)}"


def annotation_refusals(
    old: Mapping[str, str], new: Mapping[str, str], user: str, *, is_new: bool = False
) -> list[Refusal[AdmissionRule]]:
    """Return a refusal for each allocation annotation that a write adds, changes or removes.

    The memory unit may be set on a new pod (``is_new``), but may not be changed later.
    """
    fixed = PROTECTED if is_new else (*PROTECTED, STAMPED)
    changed = {
        key
        for key, _ in old.items() ^ new.items()
        if key in fixed or key.startswith(PROTECTED_PREFIX)
    }
    return [
        Refusal(
            AdmissionRule.FORGED,
            f"metadata.annotations[{key}]: only gputile writes which GPUs a pod holds, and "
            f"{user or 'this user'} is not one of its accounts: leave the annotation as it is",
        )
        for key in sorted(changed)[:MOST_FOUND]
    ]


def count_change_refusals(
    old: Mapping[str, str], new: Mapping[str, str]
) -> list[Refusal[AdmissionRule]]:
    """Return a refusal if a write changes the number of GPUs that a pod requests (M10)."""
    if old.get(GPU_COUNT_LABEL) == new.get(GPU_COUNT_LABEL):
        return []
    rule = (
        f"metadata.labels[{GPU_COUNT_LABEL}]: the number of GPUs is fixed when a pod is "
        f"created: create it again"
    )
    return [Refusal(AdmissionRule.COUNT_CHANGED, rule)]


def gang_change_refusals(
    old: PodView, new: PodView, user: str, trusted: Collection[str]
) -> Iterator[Refusal[AdmissionRule]]:
    """Yield a refusal for each change of a gang gate or gang label by a user not in ``trusted``.

    Only pods with a gate are protected. gputile neither sets nor removes a gate on a pod whose
    labels name no gang, so such a gate is not protected.
    """
    if user in trusted or not old.gated or old.metadata.labels.keys().isdisjoint(FIXED):
        return
    if not new.gated:
        yield Refusal(
            AdmissionRule.GANG_GATE,
            f"spec.schedulingGates[{GANG_GATE}]: gputile removes the gate when GPUs are reserved "
            f"for the whole gang: keep the gate; {_ALONE}",
        )
    before, after = old.metadata.labels, new.metadata.labels
    for label in FIXED:
        if before.get(label) != after.get(label):
            yield Refusal(
                AdmissionRule.GANG_GATE,
                f"metadata.labels[{label}]: a pod cannot change its gang while it waits: leave "
                f"the label unchanged; {_ALONE}",
            )


def share_refusals(
    annotations: Mapping[str, str], most_weight: int
) -> list[Refusal[AdmissionRule]]:
    """Return a refusal for each invalid time weight or MPS thread percentage.

    ``most_weight`` is the highest time weight that the namespace allows.
    """
    found = []
    parsers = {
        TIME_WEIGHT_ANNOTATION: lambda text: parse_weight(text, most_weight),
        MPS_THREADS_ANNOTATION: parse_active_threads,
    }
    for key, parse in parsers.items():
        try:
            parse(annotations.get(key, "1")[:20])
        except ValueError as error:
            rule = (
                f"metadata.annotations[{key}]: {error}: write such a number, or remove the "
                f"annotation"
            )
            found.append(Refusal(AdmissionRule.SHARE, rule))
    return found
