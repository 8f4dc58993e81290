"""The comparison with other projects: each cell names its evidence."""

import re

from docs.generator.pages import DOCS

_PAGE = (DOCS / "guides" / "comparison.md").read_text(encoding="utf-8")
_PROJECTS = ["gputile", "NVIDIA's plugin", "HAMi", "KAI Scheduler", "gpushare", "ACK"]
_LINK = re.compile(r"\]\([\w./#-]+\)|\]\[[\w-]+\]")


def _rows() -> list[list[str]]:
    """Return the cells of the tables with a column for each project, without their heads."""
    lines = [line.strip("| ").split(" | ") for line in _PAGE.splitlines() if line.startswith("| ")]
    return [cells for cells in lines if len(cells) > 4 and cells != _PROJECTS]


def test_each_cell_has_its_evidence() -> None:
    without = [
        (cells[0], project)
        for cells in _rows()
        for project, cell in zip(_PROJECTS, cells[1:], strict=True)
        if cell != "not documented" and not _LINK.search(cell)
    ]
    assert without == []


def test_each_source_is_named_and_used() -> None:
    """The site shows a link to a source that is not there as it stands, and says nothing."""
    defined = re.findall(r"^\[([\w-]+)\]: https://\S+$", _PAGE, re.MULTILINE)
    assert sorted(set(re.findall(r"\]\[([\w-]+)\]", _PAGE))) == sorted(defined)


def test_files_of_others_are_named_at_a_commit() -> None:
    """What a pull request or an issue says stays under its number; files change."""
    files = re.findall(r"https://github\.com/(?!\S+/(?:pull|issues)/\d+$)\S+", _PAGE, re.MULTILINE)
    assert [url for url in files if not re.search(r"/blob/[0-9a-f]{40}/", url)] == []
