"""Programs and libraries of Debian's packages that tests need and a machine may lack."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.localcluster.gomodule import cache_directory, locked
from tests.localcluster.toolchain import ComponentMissing


def debian_program(name: str, package: str = "") -> Path:
    """Return the path of a program, from its Debian package where the machine has none and root runs the tests.

    Raises:
        ComponentMissing: it is not installed and cannot be.
    """
    if found := shutil.which(name):
        return Path(found)
    _install(package or name, f"{name} is not installed")
    if found := shutil.which(name):
        return Path(found)
    raise ComponentMissing(f"Debian's package {package or name} has no program {name}")


def debian_library(name: str) -> None:
    """Have a library that programs are built with, as pkg-config calls it, installed as ``debian_program`` installs.

    Raises:
        ComponentMissing: it is not installed and cannot be.
    """
    asked = [str(debian_program("pkg-config")), "--exists", name]
    if subprocess.run(asked, check=False).returncode != 0:
        _install(f"{name}-dev", f"the library {name} is not installed with what programs are built with")
        subprocess.run(asked, check=True)


def _install(package: str, lacking: str) -> None:
    remedy = f"{lacking}: apt-get install {package}"
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise ComponentMissing(remedy)
    print(f"installing Debian's package {package}", file=sys.stderr, flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    cache_directory().mkdir(parents=True, exist_ok=True)
    with locked(cache_directory() / ".apt.lock"):  # of two at once apt-get ends one
        for command in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", package]):
            done = subprocess.run(["apt-get", *command], capture_output=True, text=True, check=False, env=environment)
            if done.returncode != 0:
                raise ComponentMissing(f"{remedy} fails: {done.stderr[-800:]}")
