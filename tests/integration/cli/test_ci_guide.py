"""Every command of the page on gating manifests is executed, and prints what the page shows."""

import os
import sys
from pathlib import Path

import pytest

from tests.e2e.walkthrough import walk

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.requirement("B4")
def test_the_page_on_gating_manifests(tmp_path: Path) -> None:
    programs = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)}
    walk(ROOT / "docs" / "guides" / "ci.md", environment, ROOT, lambda _: None)
