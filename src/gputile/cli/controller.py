"""``gputile controller``: taints of GPU nodes, nodes whose agent is silent, and gangs."""

from pathlib import Path
from typing import Annotated

import typer

from gputile.api.well_known import CONTROLLER_LEASE
from gputile.cli.configuration import read_configuration
from gputile.cli.output import fail
from gputile.cli.serving import run
from gputile.support.logs import LogFormat, set_up_logging


def controller(
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="A gputile.io/v1alpha1 Configuration; followed.")
    ] = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", help="Where the Lease is; default: the context's namespace.")
    ] = None,
    lease: Annotated[str, typer.Option("--lease", help="The Lease's name.")] = CONTROLLER_LEASE,
    health_port: Annotated[
        int, typer.Option("--health-port", min=0, max=65535, help="Port of /healthz, /readyz and /metrics; 0: none.")
    ] = 8082,
    kubeconfig: Annotated[
        Path | None, typer.Option("--kubeconfig", metavar="FILE", help="Default: as kubectl's, then the pod's own.")
    ] = None,
    context: Annotated[str | None, typer.Option("--context", help="The kubeconfig's context.")] = None,
    identity: Annotated[
        str | None, typer.Option("--identity", help="Name of this replica in the Lease; default: the host's name.")
    ] = None,
    lease_seconds: Annotated[
        int, typer.Option("--lease-seconds", min=2, max=600, help="How long a replica that died blocks the next.")
    ] = 15,
    log_format: Annotated[LogFormat, typer.Option("--log-format", help="How to write logs.")] = LogFormat.JSON,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log more.")] = False,
) -> None:
    """Taint GPU nodes, tell of nodes whose agent is silent, and start gangs whole or not at all.

    One replica acts at a time, by the Lease; the others stand by. Ends on SIGTERM.
    """
    from gputile.controlplane.controller.controller import ControllerSettings, default_identity, serve
    from gputile.kube.errors import ConfigError
    from gputile.kube.kubeconfig import load_access

    configuration = read_configuration(config)
    try:
        access = load_access(kubeconfig, context)
    except ConfigError as error:
        fail(str(error))
    set_up_logging(log_format, verbose)
    settings = ControllerSettings(
        namespace=namespace or access.namespace,
        lease=lease,
        identity=identity or default_identity(),
        lease_seconds=lease_seconds,
        health_port=health_port,
        config=config,
    )
    run(serve(access, configuration, settings))
