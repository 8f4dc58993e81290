"""``python -m changes.commit_message FILE``: refuse a message that is not ``area: what changed`` and why."""

import re
import sys
from pathlib import Path

LONGEST = 72
_SUBJECT = re.compile(r"[a-z][a-z0-9_/.-]*(?:, [a-z][a-z0-9_/.-]*)*: \S.*[^.\s]")
_BY_GIT = ("Merge ", "Revert ", "fixup! ", "squash! ")


def problems(message: str) -> list[str]:
    """Return what is wrong with a commit's message, by its subject, its second line and its body."""
    lines = [line for line in message.splitlines() if not line.startswith("#")]
    while lines and not lines[-1].strip():
        lines.pop()
    subject = lines[0] if lines else ""
    if subject.startswith(_BY_GIT):
        return []
    found = []
    if len(subject) > LONGEST:
        found.append(f"the subject has {len(subject)} characters: {LONGEST} at most")
    if not _SUBJECT.fullmatch(subject):
        found.append("the subject is `area: what changed`, without a full stop")
    if len(lines) > 1 and lines[1].strip():
        found.append("the second line is empty")
    return found


def main() -> int:
    """Return the exit code: 1 where the message is refused."""
    found = problems(Path(sys.argv[1]).read_text(encoding="utf-8"))
    for each in found:
        sys.stderr.write(f"commit message: {each}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
