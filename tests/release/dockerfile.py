"""Reads the container image's build file."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_INSTRUCTION = re.compile(r"^([A-Z]+)\s+(.*)$")


def instructions() -> list[tuple[str, str]]:
    """Return the name and the rest of each instruction."""
    text = (ROOT / "Dockerfile").read_text()
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    found = []
    for line in re.sub(r"\\\n\s*", "", lines).splitlines():
        if line.strip():
            match = _INSTRUCTION.match(line)
            assert match, f"not an instruction: {line}"
            found.append((match[1], match[2]))
    return found
