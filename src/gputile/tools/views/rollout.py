"""Assesses the rollout of each component, and finds problems of the whole installation (U11).

A component is ``Ready`` by the rules of ``kubectl rollout status``. A component is ``Failed`` if
the administrator must act: an image cannot be pulled, a container crashes, or pods are not
admitted. The reason is quoted from the cluster.

Problems of the whole installation are an upgrade that Helm has not finished, a refused
configuration, a missing component, and another extender that allocates the same GPUs.
"""

import functools
import pkgutil
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Final

import msgspec

from gputile.api.quantity import decimal
from gputile.api.wording import described
from gputile.api.workloads import (
    DaemonSet,
    Deployment,
    Event,
    HelmRevision,
    RunningPod,
    ServiceAccount,
    Terminated,
    WorkloadCondition,
)

COMPONENT_LABEL: Final = "app.kubernetes.io/component"
# The kubelet's reasons why a container waits. With _NO_IMAGE, its image cannot be pulled. With
# _HOPELESS, it will not start until somebody acts. With _STARTS, it is starting normally.
_NO_IMAGE: Final = (
    *(
        "ErrImagePull",
        "ImagePullBackOff",
        "ErrImageNeverPull",
        "InvalidImageName",
        "RegistryUnavailable",
    ),
    *("ImageInspectError", "SignatureValidationFailed"),
)
_HOPELESS: Final = frozenset(
    (
        *_NO_IMAGE,
        *(
            "CreateContainerConfigError",
            "CreateContainerError",
            "RunContainerError",
            "CrashLoopBackOff",
        ),
    )
)
_STARTS: Final = frozenset(("ContainerCreating", "PodInitializing", ""))
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
    said: Mapping[str, str] = MappingProxyType({}),
) -> Component:
    """Assess a component from its workload, its pods, and the Events of its namespace.

    ``said`` maps names of pods that are not ready to the responses of their readiness probes.
    """
    name = name_of(workload)
    kind = "Deployment" if isinstance(workload, Deployment) else "DaemonSet"
    wanted, updated, available, total = _counts(workload)
    seen = workload.status.observed_generation >= workload.metadata.generation
    done = seen and updated >= wanted and available >= wanted and total <= updated
    if done and wanted:
        return Component(name, kind, RolloutState.READY, available, wanted)
    state, reason = (
        _nothing_wanted(workload, name) if done else _trouble(workload, pods, events, said)
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


def _nothing_wanted(workload: Deployment | DaemonSet, name: str) -> tuple[RolloutState, str]:
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
    said: Mapping[str, str],
) -> tuple[RolloutState, str]:
    """Return the worst known state and the reason for it. The reason is "" if unknown."""
    found = [
        _pod_trouble(pod, events, said)
        for pod in pods
        if not pod.ready and not _replaced(workload, pod)
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
    """Return the Event that says why pods cannot be created, or None if it is outdated."""
    latest = _latest(events, workload.metadata.name, "FailedCreate")
    wanted, updated, _, _ = _counts(workload)
    if latest is None or (updated >= wanted and len(pods) >= wanted):
        return None
    newest = max((pod.metadata.creation_timestamp or "" for pod in pods), default="")
    # The times of Events may have microseconds. The creation times of pods have whole seconds.
    return latest if newest[:_TO_SECONDS] <= latest.when[:_TO_SECONDS] else None


def _replaced(workload: Deployment | DaemonSet, pod: RunningPod) -> bool:
    """Return whether a pod has failed, for example by an eviction, and another one replaces it.

    Only a Deployment keeps failed pods. A DaemonSet deletes a failed pod before it creates another
    one on the node.
    """
    ended = isinstance(workload, Deployment) and pod.status.phase == "Failed"
    wanted, _, _, total = _counts(workload)
    return ended and total >= wanted


def _pod_trouble(
    pod: RunningPod, events: Sequence[Event], said: Mapping[str, str]
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
        if waiting is not None and waiting.reason not in _STARTS:
            state = RolloutState.FAILED if waiting.reason in _HOPELESS else RolloutState.DEPLOYING
            ended = container.last_state.terminated
            more = _end(ended) if ended else ""
            text = f"{waiting.reason}: {waiting.message}" if waiting.message else waiting.reason
            lacking = _latest(events, name, _PULLS_WITHOUT) if waiting.reason in _NO_IMAGE else None
            if lacking is not None:
                more += f"; {lacking.reason}: {lacking.message}"
            return state, f"pod {name}: container {container.name}: {text}{more}"
    conditions = {condition.type: condition for condition in status.conditions}
    scheduled = conditions.get("PodScheduled", WorkloadCondition())
    if scheduled.status == "False":
        return RolloutState.DEPLOYING, f"pod {name}: {scheduled.reason}: {scheduled.message}"
    if name in said:
        return RolloutState.DEPLOYING, f"pod {name}: {said[name]}"
    event = _latest(events, name)
    if event is not None:
        return RolloutState.DEPLOYING, f"pod {name}: {event.reason}: {event.message}"
    ready = conditions.get("Ready", WorkloadCondition())
    return (
        RolloutState.DEPLOYING,
        f"pod {name}: {ready.reason}: {ready.message}" if ready.reason else "",
    )


def _end(ended: Terminated) -> str:
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


RELEASE_LABEL: Final = "app.kubernetes.io/instance"
# Label selectors for the pods of two other extenders, from gpushare's manifest and HAMi's chart.
# Both extenders write a pod's GPU into its annotations.
OTHER_EXTENDERS: Final = (
    "component=gpushare-schd-extender",
    "app.kubernetes.io/component=hami-scheduler",
)
_MOST_DIGITS: Final = 9  # the largest number of digits in a revision's number
_PENDING: Final = {
    "pending-install": "installation of",
    "pending-upgrade": "upgrade to",
    "pending-rollback": "rollback to",
}


class InstallationProblem(msgspec.Struct, frozen=True, rename="camel"):
    """A problem that is not the rollout of one component."""

    object: Annotated[
        str, described("The object with the problem, such as a Helm release, a component or a pod.")
    ]
    rule: Annotated[str, described("The problem.")]
    remedy: Annotated[str, described("How to solve the problem.")]
    state: Annotated[
        RolloutState,
        described(
            "The best state that the installation can have with this problem. Ready means that the "
            "problem affects no component."
        ),
    ]


def unfinished_releases(
    revisions: Iterable[HelmRevision], names: Iterable[str], namespace: str
) -> list[InstallationProblem]:
    """Return a problem for each Helm release in ``names`` whose latest revision is unfinished."""
    latest: dict[str, tuple[int, str]] = {}
    for revision in revisions:
        labels = revision.metadata.labels
        name, number = labels.get("name", ""), decimal(labels.get("version", ""), _MOST_DIGITS)
        latest[name] = max(latest.get(name, (0, "")), (number, labels.get("status", "")))
    found = (
        _unfinished(name, *latest[name], namespace) for name in sorted(set(names)) if name in latest
    )
    return [problem for problem in found if problem is not None]


def _unfinished(name: str, number: int, status: str, namespace: str) -> InstallationProblem | None:
    again = (
        f"helm rollback {name} --namespace {namespace}, or helm upgrade again"
        if number > 1
        else f"helm uninstall {name} --namespace {namespace}, then install it again"
    )
    told = f"Helm release {name}"
    if status == "failed":
        rule = f"Helm reports that revision {number} failed; it may be partly installed"
        return InstallationProblem(told, rule, again, RolloutState.FAILED)
    if status == "uninstalling":
        rule = f"Helm has begun to remove revision {number}, and has not finished"
        return InstallationProblem(
            told, rule, f"helm uninstall {name} --namespace {namespace}", RolloutState.FAILED
        )
    if status in _PENDING:
        rule = (
            f"Helm has not finished the {_PENDING[status]} revision {number}; it may be "
            f"partly installed"
        )
        return InstallationProblem(
            told,
            rule,
            f"wait for that helm command; if it no longer runs: {again}",
            RolloutState.DEPLOYING,
        )
    return None


def refused_configuration(why: str) -> InstallationProblem:
    """Return the problem for a configuration that components refuse with the error ``why``."""
    return InstallationProblem(
        "configuration",
        f"{why}; running components keep the previous configuration, and a restarted one does not "
        f"start",
        "correct the values with helm upgrade, or use helm rollback",
        RolloutState.FAILED,
    )


def missing_components(
    workloads: Sequence[Deployment | DaemonSet],
    accounts: Iterable[ServiceAccount],
    scheduler_name: str,
) -> list[InstallationProblem]:
    """Return a problem for each component that should exist but has no workload.

    The chart creates a ServiceAccount for each component, so a ServiceAccount without a workload
    shows that a component is missing. ``scheduler_name`` is the scheduler that admission assigns
    pods to, or "" if the chart installs no scheduler. Without any workloads the list is empty.
    """
    if not workloads:
        return []
    asking = (
        {"scheduler": f"admission assigns pods to the scheduler {scheduler_name}"}
        if scheduler_name
        else {}
    )
    for account in accounts:
        component = account.metadata.labels.get(COMPONENT_LABEL)
        if component and account.metadata.deletion_timestamp is None:
            asking.setdefault(component, f"its ServiceAccount {account.metadata.name} exists")
    there = {name_of(workload) for workload in workloads}
    return [
        InstallationProblem(
            component,
            f"it has neither a Deployment nor a DaemonSet, and {why}",
            "restore it with helm upgrade, or disable it in the chart's values",
            RolloutState.DEPLOYING,
        )
        for component, why in sorted(asking.items())
        if component not in there
    ]


def other_extenders(pods: Iterable[RunningPod]) -> list[InstallationProblem]:
    """Return a problem for each running pod of another extender."""
    names = sorted(
        {f"{p.metadata.namespace}/{p.metadata.name}" for p in pods if p.status.phase == "Running"}
    )
    return [
        InstallationProblem(
            f"pod {name}",
            "another extender runs there, and allocates the GPUs of the nodes that it serves",
            "if gputile serves the same nodes, remove it from kube-scheduler's configuration, and "
            "uninstall it",
            RolloutState.READY,
        )
        for name in names
    ]
