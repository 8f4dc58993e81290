"""Runs ``gputile web``, which serves a page that shows the cluster's GPUs as tiles, live."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from gputile.cli.configuration import LiveSource, read_given
from gputile.cli.options import option, takes
from gputile.cli.terminal import fail, note, write

if TYPE_CHECKING:
    from gputile.kube.client import Connection
    from gputile.tools.web.questions import Moment

PORT = 8420
HEALTH_PORT = 8086


@dataclass(frozen=True, slots=True, kw_only=True)
class WebOptions(LiveSource):
    port: Annotated[
        int, option("PORT", "Port to listen on; on 127.0.0.1 only, 0: any free port.", min=0, max=65535)
    ] = PORT
    tls_dir: Annotated[
        Path | None,
        option("DIR", "Serve HTTPS on every address, with tls.crt and tls.key of DIR; viewers have to log in."),
    ] = None
    health_port: Annotated[
        int, option("PORT", "Port of /healthz, /readyz and /metrics; HTTP, with --tls-dir alone.", min=1, max=65535)
    ] = HEALTH_PORT


@takes(WebOptions)
def web(options: WebOptions) -> None:
    """Serve a page that shows the cluster's GPUs as tiles, live, and print its address.

    It reads with your rights, as kubectl does, and changes nothing. It answers on loopback only, and only to clients
    that have the address; the address contains a new secret each time. An interrupt ends it.

    With --tls-dir it serves in the cluster: viewers log in with a token, need the right to list nodes, and see the
    names of pods in the namespaces whose pods they may list.
    """
    from gputile.cli.reads.live_cluster import UNREACHABLE, read_cluster
    from gputile.cli.running import run_service
    from gputile.kube.config import load_access
    from gputile.kube.errors import ConfigError, KubeError
    from gputile.support.listening import UnusableTls
    from gputile.support.telemetry import LogFormat, set_up_logging
    from gputile.tools.web.server import LoginSettings, WebSettings, serve

    live = read_cluster(options, read_given(options.config), options.installed_in)
    configuration = live.in_force()
    if (why := live.unlisted.get("ResourceClaims")) is not None:
        note(f"the cluster's ResourceClaims are not known ({why}): what they hold is not shown")
    set_up_logging(LogFormat.TEXT, verbose=False)
    login = LoginSettings(options.tls_dir, options.health_port) if options.tls_dir is not None else None
    settings = WebSettings(options.port, _ready if login is None else _serving, _complete, options.installed_in, login)
    try:
        access = load_access(options.kubeconfig, options.context)
        run_service(serve(access, configuration, live.nodes, live.pods, settings, live.claims))
    except (ConfigError, UnusableTls) as error:
        fail(str(error))
    except KubeError as error:
        fail(str(error), UNREACHABLE)


def _ready(address: str) -> None:
    write(f"{address}\n")
    note("open this address in a browser; Ctrl-C ends the page")


def _serving(address: str) -> None:
    note(f"serving at {address}; viewers log in with a token of the cluster")


async def _complete(connection: "Connection", moment: "Moment") -> "Moment":
    from gputile.cli.reads.live_cluster import read_budgets, read_groups, read_unsafe_namespaces

    groups, _ = await read_groups(connection)
    return replace(
        moment, groups=groups, unsafe=await read_unsafe_namespaces(connection), budgets=await read_budgets(connection)
    )
