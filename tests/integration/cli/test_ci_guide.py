"""Every command of the pages on gating manifests is executed, and prints what they show."""

import os
import sys
from pathlib import Path

import pytest

from tests.e2e.walkthrough import walk

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.requirement("B4")
@pytest.mark.parametrize("page", ["ci.md", "other-kinds.md"])
def test_the_pages_on_gating_manifests(page: str, tmp_path: Path) -> None:
    programs = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)}
    walk(ROOT / "docs" / "guides" / page, environment, ROOT, lambda _: None)
