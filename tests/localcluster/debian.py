"""Programs of Debian's packages that tests need and a machine may lack."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.localcluster.toolchain import ComponentMissing


def debian_program(name: str, package: str = "") -> Path:
    """Return the path of a program, from its Debian package where the machine has none and root runs the tests.

    Raises:
        ComponentMissing: it is not installed and cannot be.
    """
    if found := shutil.which(name):
        return Path(found)
    package = package or name
    remedy = f"{name} is not installed: apt-get install {package}"
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise ComponentMissing(remedy)
    print(f"installing Debian's package {package}", file=sys.stderr, flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", package]):
        done = subprocess.run(["apt-get", *command], capture_output=True, text=True, check=False, env=environment)
        if done.returncode != 0:
            raise ComponentMissing(f"{remedy} fails: {done.stderr[-800:]}")
    if found := shutil.which(name):
        return Path(found)
    raise ComponentMissing(f"Debian's package {package} has no program {name}")
