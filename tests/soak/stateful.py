"""Runs the stateful tests round by round, each with a seed of its own."""

import argparse
import os
import secrets
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

HERE = Path(__file__).resolve().parents[2]
FRESH_STORIES = "GPUTILE_FRESH_STORIES"
"""Set in the environment where tests that tell the same stories each time are to tell others."""
LONGEST_SECONDS = 3600  # for one round: hypothesis takes some minutes to shrink what it found


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", choices=sorted(_files()), action="append", help="may be given again (all)")


def run(minutes: float, given: argparse.Namespace) -> int:
    return soak([path for name, path in _files().items() if not given.only or name in given.only], minutes)


def _short(file: Path) -> str:
    return str(file.relative_to(HERE) if file.is_relative_to(HERE) else file)


def _files() -> dict[str, Path]:
    return {path.stem.removeprefix("test_"): path for path in sorted(HERE.glob("tests/stateful/test_*.py"))}


def soak(files: Sequence[Path], minutes: float) -> int:
    """Run rounds until the time is over, one at least; return 1 after the first that fails, which is printed."""
    begun, rounds = time.monotonic(), 0
    for file in cycle(files):
        passed = (time.monotonic() - begun) / 60
        if rounds and passed >= minutes:
            break
        rounds += 1
        seed, since = secrets.randbits(64), time.monotonic()
        command = [
            "pytest",
            "-q",
            "--show-capture=no",
            f"--timeout={LONGEST_SECONDS}",
            _short(file),
            f"--hypothesis-seed={seed}",
        ]
        said = _one_round(command)
        state = f"{'passed' if said is None else 'FAILED'} in {time.monotonic() - since:.0f} s"
        print(f"round {rounds}, minute {passed:.0f} of {minutes:g}: {file.stem}, seed {seed}, {state}", flush=True)
        if said is not None:
            again = shlex.join([f"{FRESH_STORIES}=1", ".venv/bin/python", "-m", *command])
            print(f"{said}\nTo see it again:\n    {again}", flush=True)
            return 1
    print(f"rounds that passed: {rounds}", flush=True)
    return 0


def _one_round(command: Sequence[str]) -> str | None:
    """Return what a round said where it failed. No round knows of examples that another one has found."""
    with tempfile.TemporaryDirectory() as empty:
        done = subprocess.run(
            [sys.executable, "-m", *command],
            cwd=HERE,
            env={**os.environ, "HYPOTHESIS_STORAGE_DIRECTORY": empty, FRESH_STORIES: "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    return done.stdout if done.returncode else None
