"""Running programs that are built with a sanitizer."""

import subprocess
from functools import cache


@cache
def without_randomization() -> tuple[str, ...]:
    """Return what to put before a command so that its addresses are where sanitizers want them; nothing if not allowed.

    Kernels that randomize more than a sanitizer knows of make its programs end now and then before they begin.
    """
    command = ("setarch", "-R")
    try:
        done = subprocess.run([*command, "true"], capture_output=True, check=False)
    except FileNotFoundError:
        return ()
    return command if done.returncode == 0 else ()
