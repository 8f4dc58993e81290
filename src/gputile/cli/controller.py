"""``gputile controller``: taints of GPU nodes, nodes whose agent is silent, and gangs."""

from typing import Annotated

import typer

from gputile.api.well_known import CONTROLLER_LEASE
from gputile.cli.configuration import read_configuration
from gputile.cli.options import Context
from gputile.cli.service_options import (
    FollowedConfig,
    Identity,
    LeaseNamespace,
    LogFormatOption,
    ServiceKubeconfig,
    Verbose,
    access_to,
)
from gputile.cli.serving import run
from gputile.support.logs import LogFormat, set_up_logging


def controller(
    config: FollowedConfig = None,
    lease_namespace: LeaseNamespace = None,
    lease: Annotated[str, typer.Option("--lease", metavar="NAME", help="The Lease's name.")] = CONTROLLER_LEASE,
    health_port: Annotated[
        int,
        typer.Option(
            "--health-port", metavar="PORT", min=0, max=65535, help="Port of /healthz, /readyz and /metrics; 0: none."
        ),
    ] = 8082,
    kubeconfig: ServiceKubeconfig = None,
    context: Context = None,
    identity: Identity = None,
    lease_seconds: Annotated[
        int,
        typer.Option(
            "--lease-seconds", metavar="SECONDS", min=2, max=600, help="How long a replica that died blocks the next."
        ),
    ] = 15,
    log_format: LogFormatOption = LogFormat.JSON,
    verbose: Verbose = False,
) -> None:
    """Taint GPU nodes, tell of nodes whose agent is silent, and start gangs whole or not at all.

    One replica acts at a time, by the Lease; the others stand by. Ends on SIGTERM.
    """
    from gputile.controlplane.controller.controller import ControllerSettings, serve
    from gputile.controlplane.leader_election import default_identity

    configuration = read_configuration(config)
    access = access_to(kubeconfig, context)
    set_up_logging(log_format, verbose)
    settings = ControllerSettings(
        namespace=lease_namespace or access.namespace,
        lease=lease,
        identity=identity or default_identity(),
        lease_seconds=lease_seconds,
        health_port=health_port,
        config=config,
    )
    run(serve(access, configuration, settings))
