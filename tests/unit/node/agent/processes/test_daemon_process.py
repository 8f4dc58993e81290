"""What an earlier agent has written down of a daemon that it started."""

from pathlib import Path

import pytest

from gputile.node.agent.mps import DaemonProcess
from tests.oddfiles import ODD


@pytest.mark.parametrize("kind", ODD)
def test_what_is_no_file_names_no_daemon(tmp_path: Path, kind: str) -> None:
    ODD[kind](tmp_path / "daemon.pid")
    assert DaemonProcess.left(tmp_path / "daemon.pid") is None


@pytest.mark.parametrize("content", [b"", b"\xff\xfe 1", b"1", b"one two"])
def test_what_is_damaged_names_no_daemon(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "daemon.pid").write_bytes(content)
    assert DaemonProcess.left(tmp_path / "daemon.pid") is None
