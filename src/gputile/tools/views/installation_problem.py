"""Finds what is wrong with an installation as a whole, which no component's own state tells (U11).

That is an upgrade that Helm has not brought to its end, a configuration that is refused, components that are not there,
and another extender that gives the same GPUs away.
"""

from collections.abc import Iterable, Sequence
from typing import Annotated, Final

import msgspec

from gputile.api.quantity import decimal
from gputile.api.wording import described
from gputile.api.workloads import DaemonSet, Deployment, HelmRevision, RunningPod, ServiceAccount
from gputile.tools.views.rollout import COMPONENT_LABEL, RolloutState, name_of

RELEASE_LABEL: Final = "app.kubernetes.io/instance"
# Labels of the pods of gpushare's manifest and of HAMi's chart: both write to pods which GPU they get.
OTHER_EXTENDERS: Final = ("component=gpushare-schd-extender", "app.kubernetes.io/component=hami-scheduler")
_MOST_DIGITS: Final = 9  # of a revision's number
_PENDING: Final = {"pending-install": "installation", "pending-upgrade": "upgrade", "pending-rollback": "rollback"}


class InstallationProblem(msgspec.Struct, frozen=True, rename="camel"):
    """What is wrong with ``object``, by which rule, and what to do. ``state`` is Ready where all components may be."""

    object: Annotated[str, described("What is wrong: a Helm release, the API server, images, pods.")]
    rule: Annotated[str, described("What is wrong with it.")]
    remedy: Annotated[str, described("What to do about it.")]
    state: Annotated[RolloutState, described("How far the installation can be at most; Ready where it hinders none.")]


def unfinished_releases(
    revisions: Iterable[HelmRevision], names: Iterable[str], namespace: str
) -> list[InstallationProblem]:
    """Return the problems of the releases ``names`` whose latest revision Helm did not bring to its end."""
    latest: dict[str, tuple[int, str]] = {}
    for revision in revisions:
        labels = revision.metadata.labels
        name, number = labels.get("name", ""), decimal(labels.get("version", ""), _MOST_DIGITS)
        latest[name] = max(latest.get(name, (0, "")), (number, labels.get("status", "")))
    found = (_unfinished(name, *latest[name], namespace) for name in sorted(set(names)) if name in latest)
    return [problem for problem in found if problem is not None]


def _unfinished(name: str, number: int, status: str, namespace: str) -> InstallationProblem | None:
    again = (
        f"helm rollback {name} --namespace {namespace}, or helm upgrade once more"
        if number > 1
        else f"helm uninstall {name} --namespace {namespace}, then install it once more"
    )
    told = f"Helm release {name}"
    if status == "failed":
        rule = f"Helm says that revision {number} failed: it may be there in part"
        return InstallationProblem(told, rule, again, RolloutState.FAILED)
    if status == "uninstalling":
        rule = f"Helm has begun to remove revision {number}, and has not ended"
        return InstallationProblem(told, rule, f"helm uninstall {name} --namespace {namespace}", RolloutState.FAILED)
    if status in _PENDING:
        rule = f"Helm has not ended the {_PENDING[status]} to revision {number}: it may be there in part"
        return InstallationProblem(
            told, rule, f"wait for that helm; where none runs any more: {again}", RolloutState.DEPLOYING
        )
    return None


def refused_configuration(why: str) -> InstallationProblem:
    """Return the problem of a configuration that no component takes; ``why`` as its reader says it."""
    return InstallationProblem(
        "configuration",
        f"{why}; components that run keep what they had, and one that starts anew does not run",
        "correct the values by helm upgrade, or go back (helm rollback)",
        RolloutState.FAILED,
    )


def missing_components(
    workloads: Sequence[Deployment | DaemonSet], accounts: Iterable[ServiceAccount], scheduler_name: str
) -> list[InstallationProblem]:
    """Return the problems of components that are not there, though what belongs to them is.

    The chart makes an account for each component that is to be there, and has admission give pods to the scheduler
    ``scheduler_name`` where it installs one, "" elsewhere. Where nothing is installed, nothing is missing.
    """
    if not workloads:
        return []
    asking = {"scheduler": f"admission gives pods to the scheduler {scheduler_name}"} if scheduler_name else {}
    for account in accounts:
        component = account.metadata.labels.get(COMPONENT_LABEL)
        if component and account.metadata.deletion_timestamp is None:
            asking.setdefault(component, f"its ServiceAccount {account.metadata.name} is there")
    there = {name_of(workload) for workload in workloads}
    return [
        InstallationProblem(
            component,
            f"it has neither a Deployment nor a DaemonSet, and {why}",
            "put it back: helm upgrade writes what the chart has; if it is not to be there, disable it there",
            RolloutState.DEPLOYING,
        )
        for component, why in sorted(asking.items())
        if component not in there
    ]


def other_extenders(pods: Iterable[RunningPod]) -> list[InstallationProblem]:
    """Return the problems that the pods of other extenders are, those that run."""
    names = sorted({f"{p.metadata.namespace}/{p.metadata.name}" for p in pods if p.status.phase == "Running"})
    return [
        InstallationProblem(
            f"pod {name}",
            "another extender runs there, which gives away the GPUs of the nodes that it serves",
            "take it out of kube-scheduler's configuration, and remove it, where gputile serves the same nodes",
            RolloutState.READY,
        )
        for name in names
    ]
