"""How the C files build upon each other: what a module includes, that there is no way back, and what macros may do.

A module is a header and the file of the same name.
"""

import re
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from hatch_build import LIBRARY_GROUPS, SOURCES

FILES = sorted(path for path in SOURCES.glob("*/*") if path.suffix in (".c", ".h", ".def"))


def test_no_module_is_above_itself_and_groups_build_upon_those_before_them() -> None:
    graph: dict[str, set[str]] = {}
    for group in LIBRARY_GROUPS:
        allowed = LIBRARY_GROUPS[: LIBRARY_GROUPS.index(group) + 1]
        for path in (SOURCES / group).glob("*.[ch]"):
            included = set(re.findall(r'#include "([^"]+)\.h"', path.read_text(encoding="utf-8")))
            module = str(path.relative_to(SOURCES).with_suffix(""))
            graph.setdefault(module, set()).update(included - {module})
            assert all(each.partition("/")[0] in allowed for each in included), (module, included)
    TopologicalSorter(graph).prepare()  # a cycle raises CycleError


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCES)))
def test_a_file_begins_with_what_it_is_for(path: Path) -> None:
    """Each file begins with a comment of at least a sentence, and includes its own header before others."""
    text = path.read_text(encoding="utf-8")
    comment = re.match(r"/\* ?(.*?)\*/", text, re.DOTALL)
    assert comment, "no comment"
    assert re.search(r"[.)]\s*$", comment[1].strip()), "no sentence"
    includes = re.findall(r'#include ["<]([^">]+)', text)
    if path.suffix == ".c" and path.with_suffix(".h").exists():
        assert includes[0] == str(path.with_suffix(".h").relative_to(SOURCES))


def test_no_macro_hides_control_flow() -> None:
    """The table of what submits work alone defines functions by a macro; native/README.md says why.

    In builds for sanitizers another one chooses a function.
    """
    found = []
    for path in FILES:
        text = path.read_text(encoding="utf-8").replace("\\\n", " ")
        for name, body in re.findall(r"^#define (\w+)(.*)$", text, re.MULTILINE):
            text_of_it = re.sub(r"/\*.*?\*/", "", body)
            if re.search(r"\b(return|goto|break|continue|if|for|while|switch)\b|\?|\(\{|&&|\|\|", text_of_it):
                found.append(f"{path.relative_to(SOURCES)}: {name}")
    assert found == ["base/pthread_compat.c: FUNCTION", "hooks/submit.c: X"]
