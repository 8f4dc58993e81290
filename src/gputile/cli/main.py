"""Starts the programs ``gputile``, ``kubectl gputile`` and ``kubectl inspect cgpu``."""

import errno
import os
import signal
import sys
from collections.abc import Callable

_CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def main() -> None:
    _end_on_interrupt()
    from gputile.cli.app import app

    _run(lambda: app(prog_name="gputile"))


def kubectl_gputile() -> None:
    """Run ``kubectl gputile``. kubectl finds the plugin by the file name ``kubectl-gputile``."""
    _end_on_interrupt()
    from gputile.cli.app import kubectl_app

    _run(lambda: kubectl_app(prog_name="kubectl gputile"))


def kubectl_inspect_cgpu() -> None:
    """Run ``kubectl inspect cgpu``. The file name of the program is ``kubectl-inspect-cgpu``."""
    _end_on_interrupt()
    from gputile.cli.app import plain
    from gputile.cli.commands.inspect import inspect

    _run(lambda: plain(inspect, "inspect")(prog_name="kubectl inspect cgpu"))


def _end_on_interrupt() -> None:
    """Let SIGINT end the process at once and without a traceback.

    Process 1 of a container keeps Python's handler, because the kernel delivers a signal to
    process 1 only if the process has a handler for it.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler and os.getpid() != 1:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _run(program: Callable[[], object]) -> None:
    """Run a program. If its output cannot be written, exit with an error message of one line."""
    try:
        program()
    except OSError as error:
        if error.errno not in _CANNOT_WRITE or error.filename is not None:
            raise
        # Without this redirection, Python tries to write again at exit and prints a second error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(f"error: cannot write to standard output: {error.strerror}")
