"""What a file of `gputile.io/v1alpha1` could say in any version can be said in all later ones.

``fields/VERSION.txt`` holds the fields and choices that came with a version, as ``Kind.field`` and ``Kind.field =
choice``; ``[]`` stands for an entry of a list, ``{}`` for a value of a mapping.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gputile.version import VERSION
from tests.schemas import validator

pytestmark = pytest.mark.requirement("U10")

RECORDS = Path(__file__).with_name("fields")
FILES = ("configuration", "cluster", "nodepool", "podkinds")


def said(parts: dict[str, Any], part: dict[str, Any], path: str) -> Iterator[str]:
    """Yield the fields and choices of a ``part`` of a schema, which ``path`` leads to."""
    if "$ref" in part:
        part = parts[part["$ref"].rsplit("/", 1)[1]]
    for each in part.get("anyOf", ()):
        yield from said(parts, each, path)
    for choice in part.get("enum", ()):
        if choice is not None:
            yield f"{path} = {choice}"
    for key, each in part.get("properties", {}).items():
        yield f"{path}.{key}"
        yield from said(parts, each, f"{path}.{key}")
    for key, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(part.get(key), dict):
            yield from said(parts, part[key], path + mark)


def of_kind(name: str) -> set[str]:
    """Return what can be said in the files that the schema ``name`` describes."""
    schema = validator(name).schema
    root = schema["$defs"][schema["$ref"].rsplit("/", 1)[1]]
    return set(said(schema["$defs"], root, root["properties"]["kind"]["enum"][0]))


NOW = set[str]().union(*map(of_kind, FILES))


def recorded(version: str) -> set[str]:
    return set((RECORDS / f"{version}.txt").read_text(encoding="utf-8").splitlines())


VERSIONS = sorted(path.stem for path in RECORDS.glob("*.txt"))


@pytest.mark.parametrize("version", VERSIONS)
def test_what_a_version_brought_is_still_there(version: str) -> None:
    """A field with a better name goes beside the old one, and one that does nothing any more is still taken."""
    assert len(recorded(version)) > 10
    assert sorted(recorded(version) - NOW) == []


def test_what_is_new_is_recorded() -> None:
    """Else nobody would notice when it goes again."""
    known = set[str]().union(*map(recorded, VERSIONS))
    assert sorted(NOW - known) == [], f"write these lines to {RECORDS / VERSION}.txt"
