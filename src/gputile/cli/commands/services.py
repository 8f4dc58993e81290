"""Runs the services: ``gputile agent`` on GPU nodes, ``extender``, ``controller``, ``webhook``."""

import ipaddress
import json
import os
import sys
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gputile.api.well_known import CONTROLLER_LEASE
from gputile.cli.configuration import read_configuration
from gputile.cli.options import Context, namespace, option, takes
from gputile.cli.terminal import fail
from gputile.support.log_format import LogFormat, set_up_logging

if TYPE_CHECKING:
    from gputile.kube.config import Access
    from gputile.support.listening import TlsFiles


ServiceKubeconfig = Annotated[
    Path | None,
    option(
        "FILE", "The kubeconfig file. By default, kubectl's, or else the pod's service account."
    ),
]
FollowedConfig = Annotated[
    Path | None,
    option(
        "FILE", "A file with a gputile.io/v1alpha1 Configuration. It is reloaded when it changes."
    ),
]
Identity = Annotated[
    str | None,
    option("NAME", "The name of this replica in the Lease. By default, the host's name."),
]
LeaseNamespace = Annotated[
    str | None,
    option(
        "NAMESPACE",
        "The namespace of the Lease. By default, the context's namespace.",
        callback=namespace,
    ),
]
LogFormatOption = Annotated[LogFormat, typer.Option("--log-format", help="The format of the logs.")]
HealthPort = Annotated[
    int,
    option(
        "PORT",
        "The HTTP port of /healthz, /readyz and /metrics. It listens on every address. 0 disables "
        "it.",
        min=0,
        max=65535,
    ),
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Log debug messages too.")]


def access_to(kubeconfig: Path | None, context: str | None) -> "Access":
    """Load the credentials for the API server. Exit if they are missing or unusable."""
    from gputile.kube.config import load_access
    from gputile.kube.errors import ConfigError

    try:
        return load_access(kubeconfig, context)
    except ConfigError as error:
        fail(str(error))


def run_service(service: Coroutine[Any, Any, None]) -> None:
    """Run a service until it ends. Exit with an error if it cannot listen on a port."""
    import uvloop

    from gputile.support.listening import PortError

    try:
        uvloop.run(service)
    except PortError as error:
        fail(str(error))


@dataclass(frozen=True, slots=True)
class AgentOptions:
    node_name: Annotated[
        str, option("NAME", "This node's name in the cluster.", envvar="NODE_NAME")
    ] = ""
    config: FollowedConfig = None
    kubeconfig: ServiceKubeconfig = None
    context: Context = None
    device_plugin_dir: Annotated[Path, option("DIR", "The directory of kubelet.sock.")] = Path(
        "/var/lib/kubelet/device-plugins"
    )
    pod_resources_socket: Annotated[Path, option("FILE", "The kubelet's PodResources socket.")] = (
        Path("/var/lib/kubelet/pod-resources/kubelet.sock")
    )
    state_dir: Annotated[
        Path,
        option(
            "DIR", "The directory of the agent's state, mounted from the same path on the host."
        ),
    ] = Path("/var/lib/gputile")
    usage_dir: Annotated[
        Path,
        option(
            "DIR",
            "The directory in which containers record their usage. It must be mounted nosuid, from "
            "the same path on the host.",
        ),
    ] = Path("/run/gputile")
    cdi_dir: Annotated[
        Path | None,
        option(
            "DIR",
            "Pass devices by CDI too, if NVIDIA's toolkit has described the GPUs in DIR. Most "
            "runtimes use /var/run/cdi.",
        ),
    ] = None
    machine_root: Annotated[
        Path, option("DIR", "The directory with the /sys, /proc and /dev that show the GPUs.")
    ] = Path("/")
    rest: Annotated[
        bool,
        typer.Option(
            "--rest/--no-rest", help="Wait idle on a node without NVIDIA GPUs until a GPU appears."
        ),
    ] = True
    health_port: HealthPort = 0
    log_format: LogFormatOption = LogFormat.JSON
    verbose: Verbose = False


@takes(AgentOptions)
def agent(options: AgentOptions) -> None:
    """Serve this node's GPUs to the kubelet as a device plugin.

    Each container gets the GPUs that are booked for its pod.
    """
    from gputile.node.agent.settings import AgentSettings, HostPaths, encode_settings

    name = options.node_name or os.uname().nodename
    read_configuration(options.config)
    access_to(options.kubeconfig, options.context)
    try:
        options.state_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fail(f"--state-dir {options.state_dir}: {error.strerror}")
    places = HostPaths(
        options.device_plugin_dir,
        options.pod_resources_socket,
        options.state_dir,
        options.cdi_dir,
        options.usage_dir,
    )
    settings = AgentSettings(
        name,
        places,
        options.config,
        options.kubeconfig,
        options.context,
        options.health_port,
        options.log_format,
        options.verbose,
    )
    gateway = [
        "-m",
        "gputile.node.gateway",
        f"--log-format={options.log_format.value}",
        f"--claim-file={places.claim}",
    ]
    gateway += [f"--device-plugin-dir={options.device_plugin_dir}"]
    gateway += [f"--pod-resources-socket={options.pod_resources_socket}"]
    gateway += ["--verbose"] if options.verbose else []
    encoded = encode_settings(settings)
    command = [sys.executable, *gateway, "--", sys.executable, "-m", "gputile.node.agent", encoded]
    if options.rest:
        leave = [sys.executable, "-m", "gputile.node.agent.node_status", encoded]
        resting = [
            "-m",
            "gputile.node.idle",
            str(options.machine_root),
            str(options.health_port),
            json.dumps(leave),
        ]
        command = [sys.executable, *resting, *command]
    # Replace this process, so that the modules of the command line do not remain in memory.
    os.execv(sys.executable, command)  # noqa: S606 - no shell is wanted


@dataclass(frozen=True, slots=True)
class ControllerOptions:
    config: FollowedConfig = None
    lease_namespace: LeaseNamespace = None
    lease: Annotated[str, option("NAME", "The name of the Lease.")] = CONTROLLER_LEASE
    health_port: HealthPort = 8082
    kubeconfig: ServiceKubeconfig = None
    context: Context = None
    identity: Identity = None
    lease_seconds: Annotated[
        int,
        option(
            "SECONDS",
            "The duration of the Lease. If the leader dies, the next replica waits this long.",
            min=2,
            max=600,
        ),
    ] = 15
    log_format: LogFormatOption = LogFormat.JSON
    verbose: Verbose = False


@takes(ControllerOptions)
def controller(options: ControllerOptions) -> None:
    """Plan gangs and preemption, request nodes from autoscalers, taint GPU nodes, and report silent
    agents.

    Only the replica that holds the Lease acts. The others wait for it. SIGTERM ends the service.
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


@dataclass(frozen=True, slots=True)
class ExtenderOptions:
    host: Annotated[
        str, option("ADDRESS", "The address to listen on. TLS is required unless it is loopback.")
    ] = "127.0.0.1"
    port: Annotated[int, option("PORT", "The port to listen on.", min=1, max=65535)] = 8888
    config: FollowedConfig = None
    kubeconfig: ServiceKubeconfig = None
    context: Context = None
    identity: Identity = None
    lease_namespace: LeaseNamespace = None
    lease_seconds: Annotated[
        int, option("SECONDS", "The duration of the Lease. 0 disables the Lease.", min=0, max=600)
    ] = 15
    events: Annotated[bool, typer.Option("--events/--no-events", help="Record Events on pods.")] = (
        True
    )
    health_port: HealthPort = 0
    tls_cert: Annotated[Path | None, option("FILE", "The certificate to serve HTTPS with.")] = None
    tls_key: Annotated[Path | None, option("FILE", "The private key of --tls-cert.")] = None
    client_ca: Annotated[
        Path | None, option("FILE", "Accept only clients with a certificate of this CA.")
    ] = None
    log_format: LogFormatOption = LogFormat.JSON
    verbose: Verbose = False


@takes(ExtenderOptions)
def extender(options: ExtenderOptions) -> None:
    """Tell kube-scheduler which nodes fit a pod and how well, choose its GPUs, and bind the pod.

    Serves /filter, /prioritize, /bind and /preempt (POST), /healthz, /readyz and /metrics (GET).
    SIGTERM ends the service after the Bindings in progress.
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
    """Return the files for HTTPS, or None for HTTP on loopback. Exit if the options are invalid."""
    from gputile.support.listening import TlsFiles, UnusableTls

    certificate, key, client_ca = options.tls_cert, options.tls_key, options.client_ca
    if (certificate is None) != (key is None) or (client_ca is not None and certificate is None):
        fail("--tls-cert and --tls-key must be given together, and --client-ca requires them")
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


@dataclass(frozen=True, slots=True)
class WebhookOptions:
    installed_in: Annotated[
        str,
        option(
            "NAMESPACE",
            "The namespace in which gputile is installed. It contains the webhook's Service and "
            "Secret.",
            callback=namespace,
        ),
    ]
    service: Annotated[
        str, option("NAME", "The Service through which the API server reaches the webhook.")
    ]
    secret: Annotated[str, option("NAME", "The certificate's Secret. It is created if missing.")]
    configuration: Annotated[
        str,
        option(
            "NAME", "The name of both webhook configurations. The webhook updates their caBundle."
        ),
    ]
    config: FollowedConfig = None
    host: Annotated[
        str, option("ADDRESS", "The address to listen on. By default, every address.")
    ] = ""
    port: Annotated[
        int, option("PORT", "The port to listen on. It serves HTTPS.", min=1, max=65535)
    ] = 9443
    health_port: Annotated[
        int, option("PORT", "The HTTP port of /healthz, /readyz and /metrics.", min=1, max=65535)
    ] = 8083
    dns_name: Annotated[
        list[str] | None,
        option(
            "NAME", "A further DNS name or address in the certificate; may be given several times."
        ),
    ] = None
    kubeconfig: ServiceKubeconfig = None
    context: Context = None
    log_format: LogFormatOption = LogFormat.JSON
    verbose: Verbose = False


@takes(WebhookOptions)
def webhook(options: WebhookOptions) -> None:
    """Complete and validate GPU pods before they are stored, and convert legacy settings.

    The webhook serves HTTPS with the certificate in its Secret. If there is no certificate, the
    webhook creates one. SIGTERM ends the service after the reviews in progress.
    """
    from gputile.controlplane.webhook.server import WebhookSettings, serve

    read_configuration(options.config)
    access = access_to(options.kubeconfig, options.context)
    set_up_logging(options.log_format, options.verbose)
    settings = WebhookSettings(
        namespace=options.installed_in,
        service=options.service,
        secret=options.secret,
        configuration=options.configuration,
        host=options.host,
        port=options.port,
        health_port=options.health_port,
        names=tuple(options.dns_name or ()),
        config=options.config,
    )
    run_service(serve(access, settings))
