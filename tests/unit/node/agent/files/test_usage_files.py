"""Files that containers write, and what else may stand in their place."""

import fcntl
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from gputile.node.agent.files.usage_files import UsageFiles
from gputile.node.native_layouts import USAGE_BYTES, USAGE_LOCK_SLOTS
from tests.oddfiles import ODD


@pytest.mark.parametrize("kind", ODD)
def test_what_is_no_file_is_held_by_nobody(tmp_path: Path, kind: str) -> None:
    ODD[kind](tmp_path / "one")
    assert not UsageFiles(tmp_path).is_held("one")


@pytest.mark.requirement("B1", "M4")
@pytest.mark.parametrize("held", [True, False])
def test_a_file_made_unreadable_is_held_as_long_as_its_container_uses_it(tmp_path: Path, *, held: bool) -> None:
    """Its root may; the agent in its pod has no capability to read the file all the same."""
    path = tmp_path / "one"
    path.write_bytes(bytes(USAGE_BYTES))
    with path.open("r+b") as file:
        lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, USAGE_LOCK_SLOTS + 3 if held else 0, 1, 0)
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, lock)
        path.chmod(0)
        code = f"from {UsageFiles.__module__} import *; print(UsageFiles(Path({str(tmp_path)!r})).is_held('one'))"
        capable = ["setpriv", "--bounding-set=-all"] if os.geteuid() == 0 else []
        said = subprocess.run([*capable, sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert said.stdout.split() == [str(held)]
