"""Runs ``gputile status``, which tells whether the installation is deployed (U11)."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from gputile.cli.options import candidates, namespaces
from gputile.cli.options.common import REQUEST_TIMEOUT, Context, Kubeconfig, Printed, Reach, RequestTimeout
from gputile.cli.options.configuration import INSTALLED_IN
from gputile.cli.options.option import option
from gputile.cli.output.progress import SAY_AFTER_PIPED_S, Progress
from gputile.cli.output.streams import NOT_PLACED, Output, fail, write, write_json
from gputile.cli.output.terminal import columns
from gputile.cli.running.watching import Watch, watched

if TYPE_CHECKING:
    from gputile.cli.reads.bounded_reads import BoundedReads
    from gputile.tools.views.status import Installation
    from gputile.tools.views.traces import Traces

NOT_DEPLOYED = NOT_PLACED
LOOK_EVERY_S = 1.0


def status(
    installed_in: Annotated[
        str,
        option(
            "NAMESPACE",
            "Where gputile is installed.",
            autocompletion=candidates.namespaces,
            callback=namespaces.namespace,
        ),
    ] = INSTALLED_IN,
    release: Annotated[str, option("NAME", "The Helm release; default: every one there.")] = "",
    output: Printed = Output.TABLE,
    wait: Annotated[float, option("SECONDS", "How long to wait until it is deployed.", min=0)] = 0,
    watch: Watch = False,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    request_timeout: RequestTimeout = REQUEST_TIMEOUT,
) -> None:
    """Say whether gputile is Deployed, or still Deploying, or what failed; and what each GPU node is set to.

    Exit code: 0 when every component is ready, 3 while one is not, when an upgrade has failed or not ended, when
    Kubernetes is too old, or where gputile runs outside of pods: no cluster says whether it is ready then.
    """
    from gputile.tools.views.status import RolloutPhase, table

    def show(found: "Installation") -> None:
        if output is Output.JSON:
            write_json(found)
        else:
            write(table(found, columns()))

    if watch and wait:
        fail("--wait and --watch do not go together: --watch shows every change until an interrupt")
    if watch:
        reach = Reach(kubeconfig, context, request_timeout)
        first = _read(reach, installed_in, release)
        watched(first, lambda: _read(reach, installed_in, release), show, redraw=output is not Output.JSON)
    deadline = time.monotonic() + wait
    with Progress("waiting for gputile to be deployed", piped=SAY_AFTER_PIPED_S):
        while True:
            installation = _read(Reach(kubeconfig, context, request_timeout), installed_in, release)
            if installation.phase is RolloutPhase.DEPLOYED or time.monotonic() >= deadline:
                break
            time.sleep(LOOK_EVERY_S)
    show(installation)
    if installation.phase is not RolloutPhase.DEPLOYED:
        raise typer.Exit(NOT_DEPLOYED)


def _read(reach: Reach, namespace: str, release: str) -> "Installation":
    """Return the state of the installation; leave the program where the cluster cannot be read."""
    import asyncio

    from gputile.api.core import Node
    from gputile.api.workloads import ConfigMap, DaemonSet, Deployment, Event, RunningPod
    from gputile.cli.options.configuration import (
        CONFIG_MAP_KEY,
        GivenConfiguration,
        UnknownConfiguration,
        installed_configuration,
    )
    from gputile.cli.reads.bounded_reads import read_or_leave, reads
    from gputile.cli.reads.installation_problems import installation_problems
    from gputile.cli.reads.live_cluster import INSTALLED
    from gputile.cli.reads.readiness import unready_reasons
    from gputile.kube.watching.listing import list_all
    from gputile.tools.views.installation_problem import refused_configuration
    from gputile.tools.views.status import assess, with_problems, with_traces

    selector = INSTALLED["labelSelector"] + (f",app.kubernetes.io/instance={release}" if release else "")
    ours = {"labelSelector": selector}

    async def read() -> "Installation":
        async with reads(reach) as connection:
            apps, core = f"/apis/apps/v1/namespaces/{namespace}", f"/api/v1/namespaces/{namespace}"
            deployments, daemon_sets, pods, events, nodes, maps = await asyncio.gather(
                list_all(connection, f"{apps}/deployments", Deployment, ours),
                list_all(connection, f"{apps}/daemonsets", DaemonSet, ours),
                list_all(connection, f"{core}/pods", RunningPod, ours),
                list_all(connection, f"{core}/events", Event),
                list_all(connection, "/api/v1/nodes", Node),
                list_all(connection, f"{core}/configmaps", ConfigMap, ours),
            )
            workloads: list[Deployment | DaemonSet] = [*deployments, *daemon_sets]
            given = installed_configuration(maps)
            known = given.configuration if isinstance(given, GivenConfiguration) else None
            scheduler_name, unit_mib = (known.scheduler_name, known.unit_mib) if known is not None else ("", 0)
            said, problems = await asyncio.gather(
                unready_reasons(connection, namespace, pods),
                installation_problems(connection, namespace, workloads, release, selector, scheduler_name),
            )
            found = assess(workloads, pods, events, nodes, unit_mib, said)
            if isinstance(given, UnknownConfiguration) and any(CONFIG_MAP_KEY in each.data for each in maps):
                problems.append(refused_configuration(given.why))
            found = with_problems(found, problems)
            return found if found.components else with_traces(found, await _traces(connection, namespace))

    return read_or_leave(read())


async def _traces(connection: "BoundedReads", namespace: str) -> "Traces":
    """Return what programs outside of pods have left, as far as the user may read it."""
    import asyncio

    from gputile.api.lease import Lease
    from gputile.api.workloads import WebhookConfiguration
    from gputile.cli.reads.bounded_reads import listed
    from gputile.tools.views.traces import traces_of

    hooks = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
    (leases, _), (configurations, _) = await asyncio.gather(
        listed(connection, f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases", Lease),
        listed(connection, hooks, WebhookConfiguration),
    )
    return traces_of(leases or (), configurations or (), namespace)
