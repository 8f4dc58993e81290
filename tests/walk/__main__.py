"""Prints the table of the documents' statements, and what failed: ``python -m tests.walk``, after the tests."""

import sys
from pathlib import Path

from tests.walk.table import failures, table

RESULTS = Path(__file__).resolve().parents[2] / ".cache" / "tests"

if __name__ == "__main__":
    files = sorted(RESULTS.glob("*.xml"))
    print(*table(files), *failures(files), sep="\n")
    sys.exit(0 if files else "no results: `make test` and `make e2e` write them")
