"""Files that containers write, and what else may stand in their place."""

from pathlib import Path

import pytest

from gputile.node.agent.allocate.usage_files import UsageFiles
from tests.oddfiles import ODD


@pytest.mark.parametrize("kind", ODD)
def test_what_is_no_file_is_held_by_nobody(tmp_path: Path, kind: str) -> None:
    ODD[kind](tmp_path / "one")
    assert not UsageFiles(tmp_path).is_held("one")
