"""``gputile extender``: the service beside kube-scheduler."""

import ipaddress
from pathlib import Path
from typing import Annotated

import typer

from gputile.cli.configuration import read_configuration
from gputile.cli.options import Context
from gputile.cli.output import fail
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


def extender(
    host: Annotated[
        str, typer.Option("--host", metavar="ADDRESS", help="Address to listen on; other than loopback needs TLS.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", metavar="PORT", min=1, max=65535, help="Port to listen on.")] = 8888,
    config: FollowedConfig = None,
    kubeconfig: ServiceKubeconfig = None,
    context: Context = None,
    identity: Identity = None,
    lease_namespace: LeaseNamespace = None,
    lease_seconds: Annotated[
        int,
        typer.Option(
            "--lease-seconds",
            metavar="SECONDS",
            min=0,
            max=600,
            help="How long a replica that died blocks the next; 0: no Lease.",
        ),
    ] = 15,
    events: Annotated[bool, typer.Option("--events/--no-events", help="Write Events on pods.")] = True,
    health_port: Annotated[
        int,
        typer.Option(
            "--health-port",
            metavar="PORT",
            min=0,
            max=65535,
            help="Port of /healthz, /readyz and /metrics; on every address; 0: none.",
        ),
    ] = 0,
    tls_cert: Annotated[Path | None, typer.Option("--tls-cert", metavar="FILE", help="Serve HTTPS with it.")] = None,
    tls_key: Annotated[Path | None, typer.Option("--tls-key", metavar="FILE", help="Its key.")] = None,
    client_ca: Annotated[
        Path | None,
        typer.Option("--client-ca", metavar="FILE", help="Admit clients with a certificate of this CA only."),
    ] = None,
    log_format: LogFormatOption = LogFormat.JSON,
    verbose: Verbose = False,
) -> None:
    """Answer kube-scheduler: which nodes a pod fits, how good they are, which GPUs it gets, and bind it.

    Serves /filter, /prioritize, /bind and /preempt (POST), /healthz, /readyz and /metrics (GET). Ends on SIGTERM after
    the Bindings that are under way.
    """
    from gputile.controlplane.extender.server import ExtenderSettings, serve
    from gputile.controlplane.leader_election import default_identity
    from gputile.support.tls_files import TlsFiles, UnusableTls

    configuration = read_configuration(config)
    if (tls_cert is None) != (tls_key is None) or (client_ca is not None and tls_cert is None):
        fail("--tls-cert and --tls-key go together, and --client-ca goes with them")
    for file in (tls_cert, tls_key, client_ca):
        if file is not None and not file.is_file():
            fail(f"{file}: no such file")
    if tls_cert is None and not _is_loopback(host):
        fail(f"--host {host} is not loopback: give --tls-cert and --tls-key; --client-ca admits kube-scheduler only")
    tls = TlsFiles(tls_cert, tls_key, client_ca) if tls_cert and tls_key else None
    if tls is not None:
        try:
            tls.context()
        except UnusableTls as error:
            fail(str(error))
    access = access_to(kubeconfig, context)
    set_up_logging(log_format, verbose)
    settings = ExtenderSettings(
        host=host,
        port=port,
        tls=tls,
        identity=identity or default_identity(),
        lease_namespace=lease_namespace or "",
        lease_seconds=lease_seconds,
        events=events,
        config=config,
        health_port=health_port,
    )
    run(serve(access, configuration, settings))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
