"""Defines the options that several commands for people have."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from gputile.cli.options import candidates
from gputile.cli.options.duration import duration_s
from gputile.cli.options.option import option
from gputile.cli.output.streams import Output, note

Kubeconfig = Annotated[Path | None, option("FILE", "The kubeconfig; default: as kubectl's.")]
Context = Annotated[str | None, option("NAME", "The kubeconfig's context.", autocompletion=candidates.contexts)]
Config = Annotated[Path | None, option("FILE", "A gputile.io/v1alpha1 Configuration; default: the cluster's own.")]
Printed = Annotated[Output, typer.Option("--output", "-o", help="What to print.")]
Plain = Annotated[bool, typer.Option("--ascii", help="Draw with ASCII characters only.")]


def _time(text: str) -> str:
    """Return a time that was given; leave the program where it is none, also where no API server is asked."""
    if text != REQUEST_TIMEOUT:
        duration_s(text)
    return text


RequestTimeout = Annotated[
    str, option("TIME", "How long to wait for each answer of the API server: 10s, 2m; 0: no limit.", callback=_time)
]
REQUEST_TIMEOUT = "10s"


@dataclass(frozen=True, slots=True)
class Reach:
    """How a live cluster is reached, as the options say."""

    kubeconfig: Path | None
    context: str | None
    request_timeout: str

    def not_used(self) -> None:
        """Say which of the options that name a live cluster count for nothing, since files describe the cluster."""
        named = {"--kubeconfig": self.kubeconfig, "--context": self.context}
        for name, value in named.items():
            if value is not None:
                note(f"{name} is ignored: the cluster is the one in the files of --cluster")
