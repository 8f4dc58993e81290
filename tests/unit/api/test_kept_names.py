"""What manifests and nodes say to gputile by a resource, label or annotation in any version, later ones understand.

``names/VERSION.txt`` holds the names, and the beginnings of names, that came with a version.
"""

import ast
from pathlib import Path

import pytest

from gputile.api import well_known
from gputile.version import VERSION

pytestmark = pytest.mark.requirement("U10")
RECORDS = Path(__file__).with_name("names")
SOURCES = Path(well_known.__file__).parents[1]
CONSTANTS = {name: value for name, value in vars(well_known).items() if name.isupper() and isinstance(value, str)}
VERSIONS = sorted(path.stem for path in RECORDS.glob("*.txt"))


def recorded(version: str) -> set[str]:
    return set((RECORDS / f"{version}.txt").read_text(encoding="utf-8").splitlines())


def used() -> set[str]:
    """Return the constants that sources beside their own import, or build others from."""
    files = [path.read_text(encoding="utf-8") for path in SOURCES.rglob("*.py")]
    trees = [ast.parse(text) for text in files if "well_known" in text]
    trees.append(ast.parse(Path(well_known.__file__).read_text(encoding="utf-8")))
    imported = {
        alias.name
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == well_known.__name__
        for alias in node.names
    }
    loaded = {node.id for node in ast.walk(trees[-1]) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    return imported | loaded


@pytest.mark.parametrize("version", VERSIONS)
def test_names_of_a_version_are_still_understood(version: str) -> None:
    """A better name goes beside the old one."""
    known = used()
    now = {value for name, value in CONSTANTS.items() if name in known}
    assert len(recorded(version)) >= 8
    assert sorted(recorded(version) - now) == []


def test_new_names_are_recorded() -> None:
    """Else nobody would notice when one goes again."""
    known = set[str]().union(*map(recorded, VERSIONS))
    assert sorted(set(CONSTANTS.values()) - known) == [], f"write these lines to {RECORDS / VERSION}.txt"
