"""Repeats the stateful tests with hypothesis's profile ``soak``, each round with a seed of its own."""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parents[2]
LONGEST_SECONDS = 3600  # for one test: hypothesis takes some minutes to shrink what it found


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add what this part takes beside the minutes."""
    parser.add_argument("tests", nargs="*", default=["tests/stateful"], help="files or tests (tests/stateful)")


def run(minutes: float, given: argparse.Namespace) -> int:
    """Run rounds until the time is over, one at least; return 1 after the first that fails, with its seed printed."""
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
