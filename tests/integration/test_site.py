"""The documentation as a site: it builds, its links lead somewhere, and a browser loads nothing from elsewhere."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from docs.generator.pages import DOCS

# What makes a browser load an address: "src", a link that is no mere reference, and "url" and "@import" of styles.
_LOADED = re.compile(
    r"""\b(?:src|srcset|data|poster)=["']?([^"'\s>]+)"""
    r"""|<link\b(?![^>]*\brel="?(?:canonical|next|prev|edit|alternate)\b)[^>]*\bhref=["']?([^"'\s>]+)"""
    r"""|(?:url\(\s*|@import\s+)["']?([^"')\s]+)"""
)
_ELSEWHERE = re.compile(r"^(?:https?:)?//")


def loaded(text: str) -> list[str]:
    """Return the addresses that a browser loads by itself for a file."""
    return [next(filter(None, match.groups())) for match in _LOADED.finditer(text)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of the built site; a warning fails the build, wrong links and anchors among them."""
    root = tmp_path_factory.mktemp("site")
    shutil.copytree(DOCS, root / "docs")
    shutil.copy(DOCS.parent / "mkdocs.yml", root)
    built = build(root)
    assert built.returncode == 0, built.stdout + built.stderr
    return root / ".cache" / "site"


def build(root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--clean", "--strict"],
        cwd=root,
        check=False,
        capture_output=True,
        text=True,
    )


def test_wrong_links_fail_the_build(tmp_path: Path) -> None:
    settings = (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8").partition("nav:")[0]
    (tmp_path / "mkdocs.yml").write_text(settings, encoding="utf-8")
    (tmp_path / "docs" / "pictures").mkdir(parents=True)
    (tmp_path / "docs" / "pictures" / "favicon.svg").touch()
    wrong = ("missing.md", "other.md#nowhere", "#not-here", "../outside.md", "/other.md")
    lines = ["# A", "", "- [right](other.md)", *(f"- [wrong]({link})" for link in wrong)]
    (tmp_path / "docs" / "index.md").write_text("\n".join(lines), encoding="utf-8")
    (tmp_path / "docs" / "other.md").write_text("# B\n", encoding="utf-8")
    built = build(tmp_path)
    assert built.returncode != 0
    assert re.findall(r"index\.md:(\d+):", built.stdout + built.stderr) == ["4", "5", "6", "7", "8"]


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    files = [path for path in sorted(site.rglob("*")) if path.suffix in (".html", ".css", ".svg")]
    everything = [(path.name, address) for path in files for address in loaded(path.read_text(encoding="utf-8"))]
    assert len(everything) > 100
    assert [each for each in everything if _ELSEWHERE.match(each[1])] == []


def test_every_page_and_picture_is_there(site: Path) -> None:
    for source in sorted(DOCS.rglob("*.md")):
        path = source.relative_to(DOCS)
        name = "index.html" if path.name == "README.md" else f"{path.stem}.html"
        assert (site / path.parent / name).is_file(), path
    for picture in sorted(DOCS.rglob("*.svg")):
        assert (site / picture.relative_to(DOCS)).is_file()


def test_the_generator_is_not_on_the_site(site: Path) -> None:
    assert not (site / "generator").exists()


def test_a_wrong_address_would_be_found() -> None:
    assert loaded('<link rel="preconnect" href="https://a.example"><script src="//b.example/x.js"></script>') == [
        "https://a.example",
        "//b.example/x.js",
    ]
    assert loaded('@import "https://a.example/x"; b {background: url(http://c.example)}') == [
        "https://a.example/x",
        "http://c.example",
    ]
    assert loaded('<link rel="canonical" href="https://a.example"><a href="https://b.example">b</a>') == []
