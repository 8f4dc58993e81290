"""``gputile agent``: the service on every GPU node."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from gputile.cli.configuration import read_configuration
from gputile.cli.options import Context
from gputile.cli.output import fail
from gputile.cli.service_options import FollowedConfig, LogFormatOption, ServiceKubeconfig, Verbose, access_to
from gputile.support.logs import LogFormat


def agent(
    node_name: Annotated[
        str, typer.Option("--node-name", metavar="NAME", envvar="NODE_NAME", help="This node's name in the cluster.")
    ] = "",
    config: FollowedConfig = None,
    kubeconfig: ServiceKubeconfig = None,
    context: Context = None,
    device_plugin_dir: Annotated[
        Path, typer.Option("--device-plugin-dir", metavar="DIR", help="Where kubelet.sock is.")
    ] = Path("/var/lib/kubelet/device-plugins"),
    pod_resources_socket: Annotated[
        Path, typer.Option("--pod-resources-socket", metavar="FILE", help="The kubelet's PodResources socket.")
    ] = Path("/var/lib/kubelet/pod-resources/kubelet.sock"),
    state_dir: Annotated[
        Path, typer.Option("--state-dir", metavar="DIR", help="Where the agent keeps its state, on the host.")
    ] = Path("/var/lib/gputile"),
    host_state_dir: Annotated[
        Path | None,
        typer.Option("--host-state-dir", metavar="DIR", help="The same directory as the host names it, if otherwise."),
    ] = None,
    usage_dir: Annotated[
        Path,
        typer.Option(
            "--usage-dir",
            metavar="DIR",
            help="Where containers count what they hold; mounted nosuid, same on the host.",
        ),
    ] = Path("/run/gputile"),
    cdi_dir: Annotated[
        Path | None,
        typer.Option("--cdi-dir", metavar="DIR", help="Give devices by CDI too; /var/run/cdi for most runtimes."),
    ] = None,
    host_root: Annotated[
        Path, typer.Option("--host-root", metavar="DIR", help="Where the host's /usr and /proc/driver are, for CDI.")
    ] = Path("/"),
    machine_root: Annotated[
        Path, typer.Option("--machine-root", metavar="DIR", help="Where /sys, /proc and /dev tell of the GPUs.")
    ] = Path("/"),
    rest: Annotated[
        bool, typer.Option("--rest/--no-rest", help="Rest where there is no NVIDIA GPU, until there is one.")
    ] = True,
    health_port: Annotated[
        int,
        typer.Option(
            "--health-port", metavar="PORT", min=0, max=65535, help="Port of /healthz, /readyz and /metrics; 0: none."
        ),
    ] = 0,
    log_format: LogFormatOption = LogFormat.JSON,
    verbose: Verbose = False,
) -> None:
    """Serve this node's GPUs: tell the cluster what they are, give each pod the GPU that was booked for it."""
    from gputile.node.agent.host import HostPaths
    from gputile.node.agent.serve import AgentSettings, encode_settings

    name = node_name or os.uname().nodename
    read_configuration(config)
    access_to(kubeconfig, context)
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fail(f"--state-dir {state_dir}: {error.strerror}")
    places = HostPaths(
        device_plugin_dir, pod_resources_socket, state_dir, host_state_dir, cdi_dir, host_root, usage_dir
    )
    settings = AgentSettings(name, places, config, kubeconfig, context, health_port, log_format, verbose)
    gateway = ["-m", "gputile.node.gateway", f"--log-format={log_format.value}", f"--claim-file={places.claim}"]
    gateway += [f"--device-plugin-dir={device_plugin_dir}", f"--pod-resources-socket={pod_resources_socket}"]
    gateway += ["--verbose"] if verbose else []
    encoded = encode_settings(settings)
    command = [sys.executable, *gateway, "--", sys.executable, "-m", "gputile.node.agent", encoded]
    if rest:
        leave = [sys.executable, "-m", "gputile.node.agent.status.leaving", encoded]
        resting = ["-m", "gputile.node.gateway.idle", str(machine_root), str(health_port), json.dumps(leave)]
        command = [sys.executable, *resting, *command]
    # This process becomes the other: what the command line needed is not kept in memory.
    os.execv(sys.executable, command)  # noqa: S606 - no shell is wanted
