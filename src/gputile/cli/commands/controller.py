"""Runs ``gputile controller``, which keeps taints, reports silent agents and starts gangs."""

from dataclasses import dataclass
from typing import Annotated

from gputile.api.well_known import CONTROLLER_LEASE
from gputile.cli.options.common import Context, option, takes
from gputile.cli.options.configuration import read_configuration
from gputile.cli.options.services import (
    FollowedConfig,
    Identity,
    LeaseNamespace,
    LogFormatOption,
    ServiceKubeconfig,
    Verbose,
    access_to,
)
from gputile.cli.running import run_service
from gputile.support.telemetry import LogFormat, set_up_logging


@dataclass(frozen=True, slots=True)
class ControllerOptions:
    """What the command line asks, in the order of the help."""

    config: FollowedConfig = None
    lease_namespace: LeaseNamespace = None
    lease: Annotated[str, option("NAME", "The Lease's name.")] = CONTROLLER_LEASE
    health_port: Annotated[
        int, option("PORT", "Port of /healthz, /readyz and /metrics; 0: none.", min=0, max=65535)
    ] = 8082
    kubeconfig: ServiceKubeconfig = None
    context: Context = None
    identity: Identity = None
    lease_seconds: Annotated[
        int, option("SECONDS", "How long a replica that died blocks the next.", min=2, max=600)
    ] = 15
    log_format: LogFormatOption = LogFormat.JSON
    verbose: Verbose = False


@takes(ControllerOptions)
def controller(options: ControllerOptions) -> None:
    """Taint GPU nodes, tell of nodes whose agent is silent, and start gangs whole or not at all.

    One replica acts at a time, by the Lease; the others stand by. Ends on SIGTERM.
    """
    from gputile.controlplane.controller.controller import ControllerSettings, serve
    from gputile.controlplane.leader_election import default_identity

    configuration = read_configuration(options.config)
    access = access_to(options.kubeconfig, options.context)
    set_up_logging(options.log_format, options.verbose)
    settings = ControllerSettings(
        namespace=options.lease_namespace or access.namespace,
        lease=options.lease,
        identity=options.identity or default_identity(),
        lease_seconds=options.lease_seconds,
        health_port=options.health_port,
        config=options.config,
    )
    run_service(serve(access, configuration, settings))
