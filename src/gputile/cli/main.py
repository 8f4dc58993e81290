"""Starts the programs ``gputile``, ``kubectl gputile`` and ``kubectl inspect cgpu``."""

import errno
import os
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer

_COMPLETE = "_GPUTILE_COMPLETE"
_FILES, _NO_FILES = 0, 4  # cobra's ShellCompDirective, which kubectl takes for the last line: default, no file names
_CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def main() -> None:
    """Run ``gputile``."""
    _end_on_interrupt()
    from gputile.cli.app import app

    _run(lambda: app(prog_name="gputile"))


def kubectl_gputile() -> None:
    """Run ``kubectl gputile``: kubectl finds it by the name of this program, ``kubectl-gputile``."""
    _end_on_interrupt()
    from gputile.cli.app import kubectl_app

    _run(lambda: kubectl_app(prog_name="kubectl gputile"))


def kubectl_inspect_cgpu() -> None:
    """Run ``kubectl inspect cgpu``, as ``kubectl-inspect-cgpu``."""
    _end_on_interrupt()
    from gputile.cli.app import plain
    from gputile.cli.commands.inspect import inspect

    _run(lambda: plain(inspect, "inspect")(prog_name="kubectl inspect cgpu"))


def kubectl_complete_gputile() -> None:
    """Complete ``kubectl gputile``, as ``kubectl_complete-gputile``."""
    _end_on_interrupt()
    from gputile.cli.app import kubectl_app

    _run(lambda: _complete(kubectl_app))


def kubectl_complete_inspect_cgpu() -> None:
    """Complete ``kubectl inspect cgpu``, as ``kubectl_complete-inspect-cgpu``."""
    _end_on_interrupt()
    from gputile.cli.app import plain
    from gputile.cli.commands.inspect import inspect

    _run(lambda: _complete(plain(inspect, "inspect")))


def _complete(program: "typer.Typer") -> None:
    """Print what the last word may become, one a line, as kubectl asks with the words, the last one unfinished.

    kubectl offers file names where there is nothing.
    """
    import contextlib
    import io
    import shlex

    import typer.main

    from gputile.cli.app import app

    typer.main.get_command(app)  # a program with completion of its own: making it tells Typer of the shells
    line = ["gputile", *(sys.argv[1:] or [""])]
    os.environ |= {_COMPLETE: "complete_bash", "COMP_WORDS": shlex.join(line), "COMP_CWORD": str(len(line) - 1)}
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        program(prog_name="gputile", complete_var=_COMPLETE)
    found = said.getvalue().split()
    typer.echo("".join(f"{each}\n" for each in found) + f":{_NO_FILES if found else _FILES}")


def _end_on_interrupt() -> None:
    """Let SIGINT end the process at once and without a traceback.

    Process 1 of a container is the exception: the kernel gives it no signal that it does not handle.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler and os.getpid() != 1:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _run(program: Callable[[], object]) -> None:
    """Run a program; where its output cannot be written, say so in a line."""
    try:
        program()
    except OSError as error:
        if error.errno not in _CANNOT_WRITE or error.filename is not None:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or Python tries again when it ends, and complains
        sys.exit(f"error: cannot write to standard output: {error.strerror}")
