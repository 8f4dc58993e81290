"""Completes words for the kubectl plugins.

kubectl runs ``kubectl_complete-NAME`` with the words, the last one unfinished.
"""

import contextlib
import io
import os
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gputile.cli.output.streams import write

if TYPE_CHECKING:
    import typer

_VARIABLE = "_GPUTILE_COMPLETE"
_FILES, _NO_FILES = 0, 4  # cobra's ShellCompDirective, which kubectl takes for the last line: default, no file names


def complete(program: "typer.Typer", words: Sequence[str]) -> None:
    """Print what the last word may become, one a line; kubectl offers file names where there is nothing."""
    import typer.main

    from gputile.cli.app import app

    typer.main.get_command(app)  # a program with completion of its own: making it tells Typer of the shells
    line = ["gputile", *(words or [""])]
    os.environ |= {_VARIABLE: "complete_bash", "COMP_WORDS": shlex.join(line), "COMP_CWORD": str(len(line) - 1)}
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        program(prog_name="gputile", complete_var=_VARIABLE)
    found = said.getvalue().split()
    write("".join(f"{each}\n" for each in found) + f":{_NO_FILES if found else _FILES}\n")
