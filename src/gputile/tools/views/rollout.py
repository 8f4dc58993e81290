"""Assesses the rollout of each component, and finds problems of the whole installation (U11).

A component is ready by the rules of ``kubectl rollout status``. It is ``Failed`` if somebody has to
act: its image cannot be pulled, a container crashes, or its pods are not admitted. The reason is
quoted from the cluster.

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
# The kubelet's reasons why a container waits: for its image, for somebody to act, or for its start.
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
# the kubelet's Event: the pod's pull secret does not exist
_PULLS_WITHOUT: Final = "FailedToRetrieveImagePullSecret"


class RolloutState(StrEnum):
    """The state of a component."""

    READY = "Ready"
    DEPLOYING = "Deploying"
    FAILED = "Failed"


class Component(msgspec.Struct, frozen=True, rename="camel"):
    """A component: its ready and desired pods. ``reason`` says why it is not ready, "" if it is.

    ``remedy`` says how to mend that, "" if unknown.
    """

    name: Annotated[str, described("The component's name.")]
    kind: Annotated[str, described("Deployment or DaemonSet.")]
    state: Annotated[RolloutState, described("The state of the component.")]
    ready: Annotated[int, described("The number of ready pods.")]
    wanted: Annotated[int, described("The number of desired pods.")]
    reason: Annotated[str, described('Why it is not ready; "" if it is.')] = ""
    remedy: Annotated[str, described('What to do about it; "" if nothing is known.')] = ""


def component_of(
    workload: Deployment | DaemonSet,
    pods: Sequence[RunningPod],
    events: Sequence[Event],
    said: Mapping[str, str] = MappingProxyType({}),
) -> Component:
    """Assess a component from its workload, its pods, and the Events of its namespace.

    ``said`` are the responses of readiness probes that failed, by pod name.
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
    """Return the state of a component without pods; a cluster may have no nodes for agents now."""
    if isinstance(workload, Deployment):
        return RolloutState.DEPLOYING, "it is scaled to 0 pods"
    state = RolloutState.READY if name == "agent" else RolloutState.DEPLOYING
    return (
        state,
        "no node matches: none has the labels of its nodeSelector and only taints that it "
        "tolerates",
    )


def name_of(workload: Deployment | DaemonSet) -> str:
    """Return the component's name: its label, or its object's name if it has none."""
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
    """Return the worst known state with its reason, "" if there is none."""
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
        # The reasons why it makes no progress are in its pods.
        return (
            RolloutState.FAILED,
            f"{late.reason}: {late.message}{'; ' if starting else ''}{starting}",
        )
    return RolloutState.DEPLOYING, starting


def _refusal(
    workload: Deployment | DaemonSet, pods: Sequence[RunningPod], events: Sequence[Event]
) -> Event | None:
    """Return the Event which says why pods cannot be created, unless pods were created after it."""
    latest = _latest(events, workload.metadata.name, "FailedCreate")
    wanted, updated, _, _ = _counts(workload)
    if latest is None or (updated >= wanted and len(pods) >= wanted):
        return None
    newest = max((pod.metadata.creation_timestamp or "" for pod in pods), default="")
    # Events may have microseconds, pods have whole seconds.
    return latest if newest[:_TO_SECONDS] <= latest.when[:_TO_SECONDS] else None


def _replaced(workload: Deployment | DaemonSet, pod: RunningPod) -> bool:
    """Return whether another pod has replaced a pod that ended, for example by an eviction.

    A Deployment does not count such pods; a DaemonSet deletes them before it creates another one on
    the node.
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
    """Return how a container ended, without a reason that only repeats the exit code."""
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
    """Return how to mend ``reason``, or ""; ``workload`` is such as deployment/gputile-webhook."""
    for pattern, remedy in _remedies().items():
        if re.search(pattern, reason):
            return remedy.format(namespace=namespace, workload=workload)
    return ""


@functools.cache
def _remedies() -> Mapping[str, str]:
    return tomllib.loads((pkgutil.get_data(__name__, "remedies.toml") or b"").decode())


RELEASE_LABEL: Final = "app.kubernetes.io/instance"
# Labels of the pods of gpushare's manifest and of HAMi's chart, which annotate pods with their GPU
# too.
OTHER_EXTENDERS: Final = (
    "component=gpushare-schd-extender",
    "app.kubernetes.io/component=hami-scheduler",
)
_MOST_DIGITS: Final = 9  # of a revision's number
_PENDING: Final = {
    "pending-install": "installation of",
    "pending-upgrade": "upgrade to",
    "pending-rollback": "rollback to",
}


class InstallationProblem(msgspec.Struct, frozen=True, rename="camel"):
    """A problem with its rule and remedy; ``state`` is the best that the installation can reach."""

    object: Annotated[
        str, described("The object with the problem, such as a Helm release, a component or a pod.")
    ]
    rule: Annotated[str, described("The problem.")]
    remedy: Annotated[str, described("What to do about it.")]
    state: Annotated[
        RolloutState,
        described(
            "The best possible state of the installation; Ready if no component is affected."
        ),
    ]


def unfinished_releases(
    revisions: Iterable[HelmRevision], names: Iterable[str], namespace: str
) -> list[InstallationProblem]:
    """Return the problems of those releases ``names`` whose latest revision Helm did not finish."""
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
        rule = f"Helm reports that revision {number} failed; it may be installed in part"
        return InstallationProblem(told, rule, again, RolloutState.FAILED)
    if status == "uninstalling":
        rule = f"Helm has begun to remove revision {number}, and has not finished"
        return InstallationProblem(
            told, rule, f"helm uninstall {name} --namespace {namespace}", RolloutState.FAILED
        )
    if status in _PENDING:
        rule = (
            f"Helm has not finished the {_PENDING[status]} revision {number}; it may be "
            f"installed in part"
        )
        return InstallationProblem(
            told,
            rule,
            f"wait for that helm command; if it no longer runs: {again}",
            RolloutState.DEPLOYING,
        )
    return None


def refused_configuration(why: str) -> InstallationProblem:
    """Return the problem of a configuration that components refuse, for the reason ``why``."""
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
    """Return the problems of components that are missing.

    The chart creates a ServiceAccount for each component. ``scheduler_name`` is the scheduler that
    the configuration names, "" if the chart installs none. If nothing is installed, nothing is
    missing.
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
    """Return a problem for each other extender whose pods run."""
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
