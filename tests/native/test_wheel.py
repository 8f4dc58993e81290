"""The wheel carries the library; without a C compiler it is one of pure Python, and says what it lacks."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

from hatch_build import ROOT

LIBRARY = "gputile/node/isolation/libgputile-cuda.so"


def build(directory: Path, **variables: str) -> tuple[Path, str]:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **variables}, capture_output=True, text=True, check=True
    )
    return next(directory.glob("*.whl")), done.stderr + done.stdout


def test_the_wheel_has_the_library(tmp_path: Path) -> None:
    """It is a wheel for this processor, of any Python 3."""
    wheel, _ = build(tmp_path)
    assert wheel.name.endswith(f"-py3-none-linux_{os.uname().machine}.whl")
    assert LIBRARY in zipfile.ZipFile(wheel).namelist()


def test_without_a_compiler(tmp_path: Path) -> None:
    """Everything but isolation works without one."""
    wheel, said = build(tmp_path, PATH=str(tmp_path), CC="")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert LIBRARY not in zipfile.ZipFile(wheel).namelist()
    assert "no C compiler" in said
