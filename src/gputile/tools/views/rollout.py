"""Assesses the rollout of each component of an installation (U11).

A component is ``Ready`` by the rules of ``kubectl rollout status``. A component is ``Failed`` if
the administrator must act: an image cannot be pulled, a container crashes, or pods are not
admitted. The reason is quoted from the cluster.
"""

import functools
import pkgutil
import re
import tomllib
from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Final

import msgspec

from gputile.api.wording import described
from gputile.api.workloads import (
    DaemonSet,
    Deployment,
    Event,
    RunningPod,
    Terminated,
    WorkloadCondition,
)

COMPONENT_LABEL: Final = "app.kubernetes.io/component"
# Reasons that the kubelet reports for a waiting container. _NO_IMAGE: the image cannot be pulled.
# _FAILING: the container will not start until somebody acts. _STARTING: it is starting normally.
_NO_IMAGE: Final = {
    "ErrImagePull",
    "ImagePullBackOff",
    "ErrImageNeverPull",
    "InvalidImageName",
    "RegistryUnavailable",
    "ImageInspectError",
    "SignatureValidationFailed",
}
_FAILING: Final = {
    *_NO_IMAGE,
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "CrashLoopBackOff",
}
_STARTING: Final = frozenset(("ContainerCreating", "PodInitializing", ""))
_TO_SECONDS: Final = len("2026-01-01T00:00:00")
# The reason of the kubelet's Event for a pod whose image pull secret does not exist.
_PULLS_WITHOUT: Final = "FailedToRetrieveImagePullSecret"


class RolloutState(StrEnum):
    READY = "Ready"
    DEPLOYING = "Deploying"
    FAILED = "Failed"


class Component(msgspec.Struct, frozen=True, rename="camel"):
    """A Deployment or DaemonSet of gputile, with its rollout state."""

    name: Annotated[str, described("The component's name.")]
    kind: Annotated[str, described("Deployment or DaemonSet.")]
    state: Annotated[RolloutState, described("The state of the component.")]
    ready: Annotated[int, described("The number of ready pods.")]
    wanted: Annotated[int, described("The number of desired pods.")]
    reason: Annotated[
        str, described('The reason why the component is not ready, or "" if the state is Ready.')
    ] = ""
    remedy: Annotated[str, described('How to solve the problem, or "" if unknown.')] = ""


def component_of(
    workload: Deployment | DaemonSet,
    pods: Sequence[RunningPod],
    events: Sequence[Event],
    probes: Mapping[str, str] = MappingProxyType({}),
) -> Component:
    """Assess a component from its workload, its pods, and the Events of its namespace.

    ``probes`` maps names of pods that are not ready to the responses of their readiness probes.
    """
    name = name_of(workload)
    kind = "Deployment" if isinstance(workload, Deployment) else "DaemonSet"
    wanted, updated, available, total = _counts(workload)
    seen = workload.status.observed_generation >= workload.metadata.generation
    done = seen and updated >= wanted and available >= wanted and total <= updated
    if done and wanted:
        return Component(name, kind, RolloutState.READY, available, wanted)
    state, reason = (
        _scaled_to_zero(workload, name) if done else _trouble(workload, pods, events, probes)
    )
    if not reason:
        reason = (
            f"{updated} of {wanted} pods are updated"
            if updated < wanted
            else "its pods are starting"
        )
    meta = workload.metadata
    remedy = remedy_of(reason, meta.namespace, f"{kind.lower()}/{meta.name}")
    return Component(name, kind, state, min(available, wanted), wanted, reason, remedy)


def _scaled_to_zero(workload: Deployment | DaemonSet, name: str) -> tuple[RolloutState, str]:
    """Return the state and reason for a component whose desired number of pods is 0.

    The agent is then Ready, because a cluster may have no GPU nodes at the moment.
    """
    if isinstance(workload, Deployment):
        return RolloutState.DEPLOYING, "it is scaled to 0 pods"
    state = RolloutState.READY if name == "agent" else RolloutState.DEPLOYING
    return (
        state,
        "no node matches: none has the labels of its nodeSelector and only taints that it "
        "tolerates",
    )


def name_of(workload: Deployment | DaemonSet) -> str:
    """Return the value of the component label, or the object's name if that label is missing."""
    return workload.metadata.labels.get(COMPONENT_LABEL, workload.metadata.name)


def _counts(workload: Deployment | DaemonSet) -> tuple[int, int, int, int]:
    """Return the numbers of desired, updated, available and existing pods."""
    if isinstance(workload, Deployment):
        at = workload.status
        return workload.spec.replicas, at.updated_replicas, at.available_replicas, at.replicas
    now = workload.status
    return (
        now.desired_number_scheduled,
        now.updated_number_scheduled,
        now.number_available,
        now.updated_number_scheduled,
    )


def _trouble(
    workload: Deployment | DaemonSet,
    pods: Sequence[RunningPod],
    events: Sequence[Event],
    probes: Mapping[str, str],
) -> tuple[RolloutState, str]:
    """Return the worst known state and the reason for it. The reason is "" if unknown."""
    found = [
        _pod_trouble(pod, events, probes)
        for pod in pods
        if not pod.ready and not _is_replaced(workload, pod)
    ]
    failed = [reason for state, reason in found if state is RolloutState.FAILED]
    starting = next(
        (reason for state, reason in found if state is RolloutState.DEPLOYING and reason), ""
    )
    conditions = {(each.type, each.status): each for each in workload.status.conditions}
    refused = conditions.get(("ReplicaFailure", "True")) or _refusal(workload, pods, events)
    late = conditions.get(("Progressing", "False"))
    if failed:
        return RolloutState.FAILED, failed[0]
    if refused is not None:
        return RolloutState.FAILED, f"{refused.reason}: {refused.message}"
    if late is not None:
        # The condition says only that the rollout is late. Its pods say why.
        return (
            RolloutState.FAILED,
            f"{late.reason}: {late.message}{'; ' if starting else ''}{starting}",
        )
    return RolloutState.DEPLOYING, starting


def _refusal(
    workload: Deployment | DaemonSet, pods: Sequence[RunningPod], events: Sequence[Event]
) -> Event | None:
    """Return the latest Event that says why pods cannot be created.

    Return None if there is no such Event, or if pods have been created since the Event.
    """
    latest = _latest(events, workload.metadata.name, "FailedCreate")
    wanted, updated, _, _ = _counts(workload)
    if latest is None or (updated >= wanted and len(pods) >= wanted):
        return None
    newest = max((pod.metadata.creation_timestamp or "" for pod in pods), default="")
    # The times of Events may have microseconds. The creation times of pods have whole seconds.
    return latest if newest[:_TO_SECONDS] <= latest.when[:_TO_SECONDS] else None


def _is_replaced(workload: Deployment | DaemonSet, pod: RunningPod) -> bool:
    """Return whether a pod has failed, for example after an eviction, and has been replaced.

    Only a Deployment keeps failed pods. A DaemonSet deletes a failed pod before it creates another
    one on the node.
    """
    ended = isinstance(workload, Deployment) and pod.status.phase == "Failed"
    wanted, _, _, total = _counts(workload)
    return ended and total >= wanted


def _pod_trouble(
    pod: RunningPod, events: Sequence[Event], probes: Mapping[str, str]
) -> tuple[RolloutState, str]:
    name, status = pod.metadata.name, pod.status
    if status.phase == "Failed":
        return (
            RolloutState.FAILED,
            f"pod {name}: {status.reason or 'Failed'}: "
            f"{status.message or 'its containers have ended'}",
        )
    for container in (*status.init_container_statuses, *status.container_statuses):
        waiting = container.state.waiting
        if waiting is not None and waiting.reason not in _STARTING:
            state = RolloutState.FAILED if waiting.reason in _FAILING else RolloutState.DEPLOYING
            ended = container.last_state.terminated
            more = _exit_text(ended) if ended else ""
            text = f"{waiting.reason}: {waiting.message}" if waiting.message else waiting.reason
            lacking = _latest(events, name, _PULLS_WITHOUT) if waiting.reason in _NO_IMAGE else None
            if lacking is not None:
                more += f"; {lacking.reason}: {lacking.message}"
            return state, f"pod {name}: container {container.name}: {text}{more}"
    conditions = {condition.type: condition for condition in status.conditions}
    scheduled = conditions.get("PodScheduled", WorkloadCondition())
    if scheduled.status == "False":
        return RolloutState.DEPLOYING, f"pod {name}: {scheduled.reason}: {scheduled.message}"
    if name in probes:
        return RolloutState.DEPLOYING, f"pod {name}: {probes[name]}"
    event = _latest(events, name)
    if event is not None:
        return RolloutState.DEPLOYING, f"pod {name}: {event.reason}: {event.message}"
    ready = conditions.get("Ready", WorkloadCondition())
    return (
        RolloutState.DEPLOYING,
        f"pod {name}: {ready.reason}: {ready.message}" if ready.reason else "",
    )


def _exit_text(ended: Terminated) -> str:
    """Return the text for a container's exit code, with its reason if that adds information."""
    why = f" ({ended.reason})" if ended.reason not in ("", "Error", "Completed") else ""
    return f"; it ended with exit code {ended.exit_code}{why}"


def _latest(events: Sequence[Event], name: str, reason: str = "") -> Event | None:
    about = [
        e
        for e in events
        if e.involved_object.name == name and e.type == "Warning" and reason in ("", e.reason)
    ]
    return max(about, key=lambda event: event.when, default=None)


def remedy_of(reason: str, namespace: str, workload: str) -> str:
    """Return the remedy for a component's ``reason``, or "" if no remedy is known.

    ``workload`` is the component as an argument of kubectl, such as deployment/gputile-webhook.
    """
    for pattern, remedy in _remedies().items():
        if re.search(pattern, reason):
            return remedy.format(namespace=namespace, workload=workload)
    return ""


@functools.cache
def _remedies() -> Mapping[str, str]:
    return tomllib.loads((pkgutil.get_data(__name__, "remedies.toml") or b"").decode())
