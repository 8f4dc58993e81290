"""Finds problems that concern the whole installation and not one component's rollout (U11).

Examples are an upgrade that Helm has not finished, a refused configuration, a missing component,
and another extender that allocates the same GPUs.
"""

from collections.abc import Iterable, Sequence
from typing import Annotated, Final

import msgspec

from gputile.api.quantity import decimal
from gputile.api.wording import described
from gputile.api.workloads import DaemonSet, Deployment, HelmRevision, RunningPod, ServiceAccount
from gputile.tools.views.rollout import COMPONENT_LABEL, RolloutState, name_of

RELEASE_LABEL: Final = "app.kubernetes.io/instance"
# Label selectors for the pods of two other extenders, from gpushare's manifest and HAMi's chart.
# Both extenders record a pod's GPU in the pod's annotations.
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
    """A problem that concerns the whole installation."""

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
    """Return problems of Helm releases in ``names`` whose latest revision is not complete."""
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
    retry = (
        f"helm rollback {name} --namespace {namespace}, or helm upgrade again"
        if number > 1
        else f"helm uninstall {name} --namespace {namespace}, then install it again"
    )
    release = f"Helm release {name}"
    if status == "failed":
        rule = f"Helm reports that revision {number} failed; it may be partly installed"
        return InstallationProblem(release, rule, retry, RolloutState.FAILED)
    if status == "uninstalling":
        rule = f"Helm has begun to remove revision {number}, and has not finished"
        return InstallationProblem(
            release, rule, f"helm uninstall {name} --namespace {namespace}", RolloutState.FAILED
        )
    if status in _PENDING:
        rule = (
            f"Helm has not finished the {_PENDING[status]} revision {number}; it may be "
            f"partly installed"
        )
        return InstallationProblem(
            release,
            rule,
            f"wait for that helm command; if it no longer runs: {retry}",
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
    expected = (
        {"scheduler": f"admission assigns pods to the scheduler {scheduler_name}"}
        if scheduler_name
        else {}
    )
    for account in accounts:
        component = account.metadata.labels.get(COMPONENT_LABEL)
        if component and account.metadata.deletion_timestamp is None:
            expected.setdefault(component, f"its ServiceAccount {account.metadata.name} exists")
    found = {name_of(workload) for workload in workloads}
    return [
        InstallationProblem(
            component,
            f"it has neither a Deployment nor a DaemonSet, and {why}",
            "restore it with helm upgrade, or disable it in the chart's values",
            RolloutState.DEPLOYING,
        )
        for component, why in sorted(expected.items())
        if component not in found
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
