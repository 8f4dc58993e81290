"""Runs ``gputile extender``, the service beside kube-scheduler."""

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

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
from gputile.cli.output.streams import fail
from gputile.cli.running import run_service
from gputile.support.telemetry import LogFormat, set_up_logging

if TYPE_CHECKING:
    from gputile.support.listening import TlsFiles


@dataclass(frozen=True, slots=True)
class ExtenderOptions:
    """What the command line asks, in the order of the help."""

    host: Annotated[str, option("ADDRESS", "Address to listen on; other than loopback needs TLS.")] = "127.0.0.1"
    port: Annotated[int, option("PORT", "Port to listen on.", min=1, max=65535)] = 8888
    config: FollowedConfig = None
    kubeconfig: ServiceKubeconfig = None
    context: Context = None
    identity: Identity = None
    lease_namespace: LeaseNamespace = None
    lease_seconds: Annotated[
        int, option("SECONDS", "How long a replica that died blocks the next; 0: no Lease.", min=0, max=600)
    ] = 15
    events: Annotated[bool, typer.Option("--events/--no-events", help="Write Events on pods.")] = True
    health_port: Annotated[
        int, option("PORT", "Port of /healthz, /readyz and /metrics; on every address; 0: none.", min=0, max=65535)
    ] = 0
    tls_cert: Annotated[Path | None, option("FILE", "Serve HTTPS with it.")] = None
    tls_key: Annotated[Path | None, option("FILE", "Its key.")] = None
    client_ca: Annotated[Path | None, option("FILE", "Admit clients with a certificate of this CA only.")] = None
    log_format: LogFormatOption = LogFormat.JSON
    verbose: Verbose = False


@takes(ExtenderOptions)
def extender(options: ExtenderOptions) -> None:
    """Answer kube-scheduler: which nodes a pod fits, how good they are, which GPUs it gets, and bind it.

    Serves /filter, /prioritize, /bind and /preempt (POST), /healthz, /readyz and /metrics (GET). Ends on SIGTERM after
    the Bindings that are under way.
    """
    from gputile.controlplane.extender.server import ExtenderSettings, serve
    from gputile.controlplane.leader_election import default_identity

    configuration = read_configuration(options.config)
    tls = _tls(options)
    access = access_to(options.kubeconfig, options.context)
    set_up_logging(options.log_format, options.verbose)
    settings = ExtenderSettings(
        host=options.host,
        port=options.port,
        tls=tls,
        identity=options.identity or default_identity(),
        lease_namespace=options.lease_namespace or "",
        lease_seconds=options.lease_seconds,
        events=options.events,
        config=options.config,
        health_port=options.health_port,
    )
    run_service(serve(access, configuration, settings))


def _tls(options: ExtenderOptions) -> "TlsFiles | None":
    """Return the files to serve HTTPS with, None for HTTP on loopback; leave the program where they cannot be used."""
    from gputile.support.listening import TlsFiles, UnusableTls

    certificate, key, client_ca = options.tls_cert, options.tls_key, options.client_ca
    if (certificate is None) != (key is None) or (client_ca is not None and certificate is None):
        fail("--tls-cert and --tls-key go together, and --client-ca goes with them")
    for file in (certificate, key, client_ca):
        if file is not None and not file.is_file():
            fail(f"{file}: no such file")
    if certificate is None or key is None:
        if not _is_loopback(options.host):
            remedy = "give --tls-cert and --tls-key; --client-ca admits kube-scheduler only"
            fail(f"--host {options.host} is not loopback: {remedy}")
        return None
    tls = TlsFiles(certificate, key, client_ca)
    try:
        tls.context()
    except UnusableTls as error:
        fail(str(error))
    return tls


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
