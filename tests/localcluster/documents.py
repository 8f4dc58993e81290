"""The YAML of the published documents that the requirements come from, where a checkout has them beside it."""

import re
import textwrap
from pathlib import Path

import pytest

SOURCES = Path(__file__).resolve().parents[3] / "shared" / "sources"
_FIRST_LINE = re.compile(r"(?P<indent> *)(apiVersion|kind): \S+\s*")


def document_yaml(name: str) -> list[str]:
    """Return the manifests printed in the document whose file name begins with ``name``, unchanged but for indentation.

    Skips the test where the documents are not there.
    """
    files = sorted(SOURCES.glob(f"{name}_*.txt"))
    if not files:
        pytest.skip(f"skipped: the documents are not beside this checkout (shared/sources/{name}_*.txt)")
    manifests, lines = [], files[0].read_text(encoding="utf-8").splitlines()
    while lines:
        first = _FIRST_LINE.fullmatch(lines[0])
        if first is None:
            lines.pop(0)
            continue
        indent, block = first["indent"], []
        while lines and lines[0].startswith(indent) and lines[0].strip():
            block.append(lines.pop(0))
        manifests.append(textwrap.dedent("\n".join(block)) + "\n")
    return manifests
