"""The changelog's fragments, the version's number in all files, and the size of the README."""

import re
import subprocess
import sys
from pathlib import Path

from gputile.version import VERSION

ROOT = Path(__file__).resolve().parents[3]


def test_the_fragments_of_the_changelog_can_be_put_together() -> None:
    towncrier = Path(sys.executable).with_name("towncrier")
    command = [str(towncrier), "build", "--draft", "--version", "12.34.56", "--date", "2026-01-31"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "## 12.34.56 (2026-01-31)\n\n" in done.stdout


def test_make_version_knows_every_file_that_has_the_number() -> None:
    """What people copy from pages, examples and the chart names the version of the sources."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    (listed,) = re.findall(r"^NUMBERED := (.*)$", makefile, re.MULTILINE)
    files = [ROOT / "Dockerfile", *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.yaml")]
    files += [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
    files += [path for path in ROOT.glob("charts/**/*") if path.is_file()]
    named = {
        str(path.relative_to(ROOT)): set(re.findall(r"gputile[:-](\d+\.\d+\.\d+)", path.read_text(encoding="utf-8")))
        for path in files
    }
    assert set().union(*named.values()) == {VERSION}
    assert {name for name, numbers in named.items() if numbers} <= {*listed.split()}
    assert [name for name in listed.split() if VERSION not in (ROOT / name).read_text(encoding="utf-8")] == []


def test_the_readme_is_one_screen_and_its_links_lead_somewhere() -> None:
    """README has two commands, and beside the demo the page, as its last lines."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [line.partition("](")[2] for line in readme.splitlines() if line.startswith("![")] == [
        "docs/pictures/cluster.svg)",
        "docs/pictures/page.png)",
    ]
    assert len(re.findall(r"^\$ ", readme, re.MULTILINE)) == 2
    assert len(readme.splitlines()) <= 64
    for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        targets = [part.split(")")[0].split("#")[0] for part in text.split("](")[1:]]
        assert [each for each in targets if not (ROOT / each).exists()] == []
