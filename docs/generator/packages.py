"""The packages and their modules, from the docstrings."""

import ast
import re
from pathlib import Path

from docs.generator.source import modules
from docs.generator.tables import code, table

_INIT = "__init__.py"


def render() -> str:
    """Return a section for each package: what it says of itself, and a table of its modules."""
    return "\n\n".join(map(_section, packages()))


def packages() -> list[Path]:
    """Return the packages below ``src/gputile``, sorted."""
    return sorted(path.parent for path in modules() if path.name == _INIT and path.parent.name)


def summary(path: Path) -> str:
    """Return the first paragraph of a module's docstring as one line of Markdown, "" where it has none."""
    paragraph = (ast.get_docstring(modules()[path]) or "").partition("\n\n")[0]
    return re.sub(r"``(.+?)``", r"`\1`", " ".join(paragraph.split()))


def _section(package: Path) -> str:
    own = [path for path in modules() if path.parent == package and path.name != _INIT]
    rows = [(code(path.stem), summary(path)) for path in own]
    return "\n\n".join(
        (f"## `{package}/`", summary(package / _INIT), *([table(("module", "what it is for"), rows)] if rows else ()))
    )
