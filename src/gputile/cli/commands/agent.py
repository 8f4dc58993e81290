"""Runs ``gputile agent``, the service on every GPU node."""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from gputile.cli.options.common import Context, option, takes
from gputile.cli.options.configuration import read_configuration
from gputile.cli.options.services import FollowedConfig, LogFormatOption, ServiceKubeconfig, Verbose, access_to
from gputile.cli.output.streams import fail
from gputile.support.telemetry import LogFormat


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """What the command line asks, in the order of the help."""

    node_name: Annotated[str, option("NAME", "This node's name in the cluster.", envvar="NODE_NAME")] = ""
    config: FollowedConfig = None
    kubeconfig: ServiceKubeconfig = None
    context: Context = None
    device_plugin_dir: Annotated[Path, option("DIR", "Where kubelet.sock is.")] = Path(
        "/var/lib/kubelet/device-plugins"
    )
    pod_resources_socket: Annotated[Path, option("FILE", "The kubelet's PodResources socket.")] = Path(
        "/var/lib/kubelet/pod-resources/kubelet.sock"
    )
    state_dir: Annotated[Path, option("DIR", "Where the agent keeps its state, on the host.")] = Path(
        "/var/lib/gputile"
    )
    host_state_dir: Annotated[Path | None, option("DIR", "The same directory as the host names it, if otherwise.")] = (
        None
    )
    usage_dir: Annotated[
        Path, option("DIR", "Where containers count what they hold; mounted nosuid, same on the host.")
    ] = Path("/run/gputile")
    cdi_dir: Annotated[Path | None, option("DIR", "Give devices by CDI too; /var/run/cdi for most runtimes.")] = None
    host_root: Annotated[Path, option("DIR", "Where the host's /usr and /proc/driver are, for CDI.")] = Path("/")
    machine_root: Annotated[Path, option("DIR", "Where /sys, /proc and /dev tell of the GPUs.")] = Path("/")
    rest: Annotated[
        bool, typer.Option("--rest/--no-rest", help="Rest where there is no NVIDIA GPU, until there is one.")
    ] = True
    health_port: Annotated[
        int, option("PORT", "Port of /healthz, /readyz and /metrics; 0: none.", min=0, max=65535)
    ] = 0
    log_format: LogFormatOption = LogFormat.JSON
    verbose: Verbose = False


@takes(AgentOptions)
def agent(options: AgentOptions) -> None:
    """Serve this node's GPUs: tell the cluster what they are, give each pod the GPU that was booked for it."""
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
        options.host_state_dir,
        options.cdi_dir,
        options.host_root,
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
    gateway = ["-m", "gputile.node.gateway", f"--log-format={options.log_format.value}", f"--claim-file={places.claim}"]
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
    # This process becomes the other: what the command line needed is not kept in memory.
    os.execv(sys.executable, command)  # noqa: S606 - no shell is wanted
