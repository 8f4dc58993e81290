"""Has the options that the commands of services share: the Lease, the logs, and the API server."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gputile.cli.options.common import namespace, option
from gputile.cli.output.streams import fail
from gputile.support.telemetry import LogFormat

if TYPE_CHECKING:
    from gputile.kube.config import Access

ServiceKubeconfig = Annotated[Path | None, option("FILE", "The kubeconfig; default: as kubectl's, then the pod's own.")]
FollowedConfig = Annotated[Path | None, option("FILE", "A gputile.io/v1alpha1 Configuration; followed.")]
Identity = Annotated[str | None, option("NAME", "Name of this replica in the Lease; default: the host's name.")]
LeaseNamespace = Annotated[
    str | None, option("NAMESPACE", "Where the Lease is; default: the context's namespace.", callback=namespace)
]
LogFormatOption = Annotated[LogFormat, typer.Option("--log-format", help="How to write logs.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Log more.")]


def access_to(kubeconfig: Path | None, context: str | None) -> "Access":
    """Return how the API server is reached; leave the program where nothing says it."""
    from gputile.kube.config import load_access
    from gputile.kube.errors import ConfigError

    try:
        return load_access(kubeconfig, context)
    except ConfigError as error:
        fail(str(error))
