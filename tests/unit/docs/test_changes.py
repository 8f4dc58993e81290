"""News become a part of the changelog, and messages of commits keep to their form."""

import re
from pathlib import Path

import pytest
import yaml
from changes.commit_message import problems
from changes.news import NewsError, NewsItem, assemble, collect, notes_of, release
from changes.version_number import PLACES, present, renumbered
from hypothesis import given
from hypothesis import strategies as st

from gputile.version import VERSION

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    "message",
    [
        "agent: a start waits for the former pod's processes\n\nOr both would have the GPU.\n",
        "docs, admission: what containers are given\n# a comment of git's\n",
        "tests/e2e: one cluster a module",
        "Merge branch 'x'",
        'Revert "agent: something that was quite long, so that the whole subject has more than 72 characters"',
    ],
)
def test_messages_that_are_taken(message: str) -> None:
    assert problems(message) == []


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("agent: " + "x" * 66, "the subject has 73 characters"),
        ("Fixed it", "area: what changed"),
        ("agent: it ends.", "full stop"),
        ("", "area: what changed"),
        ("agent: it ends\nsince it must", "second line"),
    ],
)
def test_messages_that_are_refused(message: str, expected: str) -> None:
    assert any(expected in each for each in problems(message))


def test_news_become_a_part_of_the_changelog(tmp_path: Path) -> None:
    (tmp_path / "unit.changed.md").write_text("A new unit takes effect\nat once.\n", encoding="utf-8")
    (tmp_path / "web-page.added.md").write_text("A page.\n", encoding="utf-8")
    changelog = tmp_path / "CHANGELOG"
    earlier = "## 0.1.0 (2026-01-01)\n\n- the first\n"
    changelog.write_text(f"# Changelog\n\n## Unreleased\n\nDo this first.\n\n{earlier}", encoding="utf-8")
    news = collect(tmp_path)
    assert assemble(news) == "### Added\n\n- A page.\n\n### Changed\n\n- A new unit takes effect at once.\n"
    release(news, "0.2.0", "2026-01-31", changelog)
    assert changelog.read_text(encoding="utf-8") == (
        "# Changelog\n\n## Unreleased\n\n## 0.2.0 (2026-01-31)\n\nDo this first.\n\n### Added\n\n- A page.\n\n"
        f"### Changed\n\n- A new unit takes effect at once.\n\n{earlier}"
    )
    assert list(tmp_path.glob("*.md")) == []
    release([], "0.3.0", "2026-02-28", changelog)
    assert "\n## Unreleased\n\n## 0.3.0 (2026-02-28)\n\n## 0.2.0 (2026-01-31)\n" in changelog.read_text("utf-8")


def test_the_notes_of_a_version_are_its_part_of_the_changelog(tmp_path: Path) -> None:
    changelog = tmp_path / "CHANGELOG.md"
    parts = ("## Unreleased", "- Later.", "## 0.2.0 (2026-01-31)", "### Added", "- B.", "## 0.1.0 (2026-01-01)", "- A.")
    changelog.write_text("# Changelog\n\n" + "\n\n".join(parts) + "\n")
    assert notes_of("0.2.0", changelog) == "# gputile 0.2.0 (2026-01-31)\n\n### Added\n\n- B.\n"
    assert notes_of("0.1.0", changelog) == "# gputile 0.1.0 (2026-01-01)\n\n- A.\n"
    for missing in ("0.3.0", "0.2"):
        with pytest.raises(NewsError, match=f"CHANGELOG.md says nothing of {missing}"):
            notes_of(missing, changelog)


@given(st.lists(st.sampled_from(["a", "word" * 9, "-", "1.", "#", "+", "`a b`", "x" * 200]), min_size=1, max_size=80))
def test_a_long_text_is_one_entry_of_its_list(words: list[str]) -> None:
    """Whoever joins its lines has the text; no line of it begins another list or a heading."""
    text = " ".join(["It", *words])
    first, *others = assemble([NewsItem(Path("x"), "added", text)]).splitlines()[2:]
    assert " ".join([first.removeprefix("- "), *map(str.strip, others)]) == text
    assert all(re.match(r"  (?![-+#]+ |1\. )", line) for line in others)
    of_words = assemble([NewsItem(Path("x"), "added", " ".join("word" for _ in words))]).splitlines()
    assert max(map(len, of_words)) <= 124


@pytest.mark.parametrize(
    ("name", "text"), [("x.md", "a"), ("x.news.md", "a"), ("x.added.md", ""), ("x.fixed.md", "- a")]
)
def test_what_is_no_news(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(NewsError, match=name):
        collect(tmp_path)


def test_the_news_of_this_checkout_can_be_assembled() -> None:
    assemble(collect())


def test_a_new_number_is_written_wherever_the_old_one_stands() -> None:
    """And nowhere else: a line that does not say the number stays."""
    assert present() == VERSION
    texts = renumbered("12.34.56")
    assert {str(path.relative_to(ROOT)) for path in texts} == {*PLACES}
    for path, text in texts.items():
        former = path.read_text(encoding="utf-8")
        assert text.replace("12.34.56", VERSION) == former
        assert VERSION not in text


def test_no_other_file_names_an_artefact_of_this_version() -> None:
    """An image, an archive: what people copy from pages, examples and the chart has the number of the sources."""
    files = [ROOT / "Dockerfile", *ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.yaml")]
    files += [path for path in ROOT.glob("charts/**/*") if path.is_file()]
    said = {path: set(re.findall(r"gputile[:-](\d+\.\d+\.\d+)", path.read_text(encoding="utf-8"))) for path in files}
    named = {str(path.relative_to(ROOT)): found for path, found in said.items() if found}
    assert set().union(*named.values()) == {VERSION}
    assert named.keys() <= PLACES.keys()


@pytest.mark.parametrize("version", [VERSION, "0.0.9", "x", "1.0", "0.2.0-rc1", "", "1.0.0\n"])
def test_what_is_no_later_version(version: str) -> None:
    with pytest.raises(NewsError, match="name a version after"):
        renumbered(version)


def test_a_place_without_the_number_is_named(tmp_path: Path) -> None:
    for name in PLACES:
        copy = tmp_path / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text((ROOT / name).read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "Dockerfile").write_text("FROM scratch\n", encoding="utf-8")
    with pytest.raises(NewsError, match="Dockerfile has no '/gputile:"):
        renumbered("12.34.56", tmp_path)


def test_the_hooks_run_from_the_checkout_alone() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    assert [repository["repo"] for repository in hooks["repos"]] == ["local"]
    assert all(hook["language"] == "system" for hook in hooks["repos"][0]["hooks"])


def test_the_readme_is_one_screen_and_its_links_lead_somewhere() -> None:
    """README has two commands, and beside the demo the page, as its last lines; the other pages are short, too."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [line.partition("](")[2] for line in readme.splitlines() if line.startswith("![")] == [
        "docs/pictures/cluster.svg)",
        "docs/pictures/page.png)",
    ]
    assert len(re.findall(r"^\$ ", readme, re.MULTILINE)) == 2
    for name, lines in (("README.md", 54), ("CONTRIBUTING.md", 60), ("SECURITY.md", 60)):
        text = (ROOT / name).read_text(encoding="utf-8")
        assert len(text.splitlines()) <= lines
        targets = [part.split(")")[0].split("#")[0] for part in text.split("](")[1:]]
        assert [each for each in targets if not (ROOT / each).exists()] == []
