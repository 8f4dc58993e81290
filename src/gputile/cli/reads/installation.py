"""Reads the state of an installation from a live cluster."""

import asyncio
from collections.abc import Iterable, Sequence

from gputile.api.core import Node
from gputile.api.other_groups import Lease
from gputile.api.workloads import ConfigMap, DaemonSet, Deployment, Event, RunningPod, WebhookConfiguration
from gputile.cli.options.common import Reach
from gputile.cli.options.configuration import (
    CONFIG_MAP_KEY,
    GivenConfiguration,
    UnknownConfiguration,
    installed_configuration,
)
from gputile.cli.reads.bounded_reads import BoundedReads, listed, read_or_leave, reads
from gputile.cli.reads.installation_problems import installation_problems
from gputile.cli.reads.live_cluster import INSTALLED
from gputile.cli.reads.readiness import unready_reasons
from gputile.kube.objects import list_all
from gputile.tools.views.installation_problem import InstallationProblem, refused_configuration
from gputile.tools.views.status import Installation, assess, with_problems, with_traces
from gputile.tools.views.traces import Traces, traces_of


def read_installation(reach: Reach, namespace: str, release: str) -> Installation:
    """Return the state of what is installed in a namespace, of one Helm release where it is named.

    Leaves the program where the cluster cannot be read.
    """

    async def read() -> Installation:
        async with reads(reach) as connection:
            return await _installation(connection, namespace, release)

    return read_or_leave(read())


async def _installation(connection: BoundedReads, namespace: str, release: str) -> Installation:
    selector = INSTALLED["labelSelector"] + (f",app.kubernetes.io/instance={release}" if release else "")
    ours = {"labelSelector": selector}
    apps, core = f"/apis/apps/v1/namespaces/{namespace}", f"/api/v1/namespaces/{namespace}"
    deployments, daemon_sets, pods, events, nodes, maps = await asyncio.gather(
        list_all(connection, f"{apps}/deployments", Deployment, ours),
        list_all(connection, f"{apps}/daemonsets", DaemonSet, ours),
        list_all(connection, f"{core}/pods", RunningPod, ours),
        list_all(connection, f"{core}/events", Event),
        list_all(connection, "/api/v1/nodes", Node),
        list_all(connection, f"{core}/configmaps", ConfigMap, ours),
    )
    workloads: Sequence[Deployment | DaemonSet] = [*deployments, *daemon_sets]
    given = installed_configuration(maps)
    known = given.configuration if isinstance(given, GivenConfiguration) else None
    scheduler_name, unit_mib = (known.scheduler_name, known.unit_mib) if known is not None else ("", 0)
    said, problems = await asyncio.gather(
        unready_reasons(connection, namespace, pods),
        installation_problems(connection, namespace, workloads, release, selector, scheduler_name),
    )
    found = with_problems(
        assess(workloads, pods, events, nodes, unit_mib, said), [*problems, *_unread_configuration(given, maps)]
    )
    return found if found.components else with_traces(found, await _traces(connection, namespace))


def _unread_configuration(
    given: GivenConfiguration | UnknownConfiguration, maps: Iterable[ConfigMap]
) -> Iterable[InstallationProblem]:
    """Yield the problem that the release's configuration is there and cannot be read."""
    if isinstance(given, UnknownConfiguration) and any(CONFIG_MAP_KEY in each.data for each in maps):
        yield refused_configuration(given.why)


async def _traces(connection: BoundedReads, namespace: str) -> Traces:
    """Return what programs outside of pods have left, as far as the user may read it."""
    hooks = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
    (leases, _), (configurations, _) = await asyncio.gather(
        listed(connection, f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases", Lease),
        listed(connection, hooks, WebhookConfiguration),
    )
    return traces_of(leases or (), configurations or (), namespace)
