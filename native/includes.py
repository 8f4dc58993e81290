"""Draws the include graph of the library's modules in native/README.md; ``make layouts`` runs it."""

import re
from collections.abc import Mapping

from hatch_build import LIBRARY_GROUPS, SOURCES

README = SOURCES / "README.md"
_BEGIN, _END = "<!-- include graph -->\n", "<!-- end -->\n"


def modules() -> Mapping[str, frozenset[str]]:
    """Return what each module of the library includes of others, by their paths without suffix."""
    graph: dict[str, set[str]] = {}
    for group in LIBRARY_GROUPS:
        for path in sorted((SOURCES / group).glob("*.[ch]")):
            module = str(path.relative_to(SOURCES).with_suffix(""))
            included = re.findall(r'#include "([^"]+)\.h"', path.read_text(encoding="utf-8"))
            graph.setdefault(module, set()).update(each for each in included if each != module)
    return {module: frozenset(included) for module, included in graph.items()}


def drawn() -> str:
    """Return the graph as a table: a module, what it includes of its own group, and of those below."""
    lines = []
    graph = modules()
    for group in LIBRARY_GROUPS:
        lines += ["", f"| `{group}/` | uses of its own group | uses of those below |", "|---|---|---|"]
        for module in sorted(each for each in graph if each.startswith(f"{group}/")):
            own = sorted(each.partition("/")[2] for each in graph[module] if each.startswith(f"{group}/"))
            below = sorted(each for each in graph[module] if not each.startswith(f"{group}/"))
            lines.append(f"| {module.partition('/')[2]} | {', '.join(own)} | {', '.join(below)} |")
    return "\n".join([*lines[1:], ""])


if __name__ == "__main__":
    text = README.read_text(encoding="utf-8")
    head, _, rest = text.partition(_BEGIN)
    README.write_text(head + _BEGIN + "\n" + drawn() + "\n" + _END + rest.partition(_END)[2], encoding="utf-8")
