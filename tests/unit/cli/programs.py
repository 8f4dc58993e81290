"""The programs as processes of their own."""

import sys


def arguments(program: str, *words: str, before: str = "") -> list[str]:
    """Return the arguments that run a function of ``gputile.cli.main``, as its installed program does."""
    return [sys.executable, "-c", f"{before}import sys; from gputile.cli.main import {program}; {program}()", *words]
