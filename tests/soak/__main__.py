"""``make soak``: tests that run for as long as they are let, each round with other chances.

Each part returns 0 where it found nothing, else 1. What it found it prints, with the command that shows it again.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.soak.parsers import NativeParsers, PythonParsers

HERE = Path(__file__).resolve().parents[2]
LONGEST_SECONDS = 3600  # for one test: hypothesis takes some minutes to shrink what it found


def stateful(minutes: float, given: argparse.Namespace) -> int:
    """Run the stateful tests in rounds, one at least, each with a seed of its own; end with the first that fails."""
    end, rounds = time.monotonic() + minutes * 60, 0
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--show-capture=no", f"--timeout={LONGEST_SECONDS}"]
    command += ["--hypothesis-profile=soak", f"-n{os.cpu_count()}", *given.tests]
    while not rounds or time.monotonic() < end:
        with tempfile.TemporaryDirectory() as empty:  # no round knows of examples that another one has found
            environment = {**os.environ, "HYPOTHESIS_STORAGE_DIRECTORY": empty}
            if subprocess.run(command, cwd=HERE, env=environment, check=False).returncode:
                return 1
        rounds += 1
    print(f"rounds that passed: {rounds}", flush=True)
    return 0


PARTS: dict[str, Callable[[float, argparse.Namespace], int]] = {
    "stateful": stateful,
    "native": NativeParsers().run,
    "fuzz": PythonParsers().run,
}


def main(arguments: list[str] | None = None) -> int:
    """Run the part that is named, for the minutes that are given."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("tests", nargs="*", default=["tests/stateful"], help="of the stateful ones (tests/stateful)")
    parser.add_argument("--minutes", type=float, default=60.0, help="a round that has begun is ended (60)")
    parser.add_argument("--target", help="one parser alone, instead of one after the other")
    given = parser.parse_args(arguments)
    try:
        return PARTS[given.part](given.minutes, given)
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
