"""The documentation as a site: it builds, its links lead somewhere, and a browser loads nothing from elsewhere."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from docs.generator.pages import DOCS

_ELSEWHERE = re.compile(r"^(?:https?:)?//")
_IN_STYLES = re.compile(r"""(?:url\(\s*|@import\s+)["']?((?:https?:)?//[^"')\s]+)""")
# What makes a browser load an address: every "src", and a link that is no mere reference.
_REFERENCES = {"canonical", "next", "prev", "edit", "alternate"}


class Loaded(HTMLParser):
    """Collects the addresses that a browser loads by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.found += [given[name] or "" for name in ("src", "srcset", "data", "poster") if name in given]
        if tag == "link" and (given.get("rel") or "") not in _REFERENCES:
            self.found.append(given.get("href") or "")


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


def loaded(site: Path) -> Iterator[tuple[str, str]]:
    """Yield each file of the site with an address that a browser loads for it."""
    for page in sorted(site.rglob("*.html")):
        parser = Loaded()
        parser.feed(page.read_text(encoding="utf-8"))
        yield from ((str(page.relative_to(site)), address) for address in parser.found)
    for style in sorted([*site.rglob("*.css"), *site.rglob("*.svg"), *site.rglob("*.html")]):
        for match in _IN_STYLES.finditer(style.read_text(encoding="utf-8")):
            yield str(style.relative_to(site)), match[1]


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    everything = list(loaded(site))
    assert len(everything) > 100
    assert [(page, address) for page, address in everything if _ELSEWHERE.match(address)] == []


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
    parser = Loaded()
    parser.feed('<link rel="preconnect" href="https://fonts.example"><script src="//cdn.example/x.js"></script>')
    assert all(_ELSEWHERE.match(address) for address in parser.found)
    assert _IN_STYLES.findall('@import "https://a.example/x"; b {background: url(http://c.example)}') == [
        "https://a.example/x",
        "http://c.example",
    ]
