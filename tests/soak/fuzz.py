"""Everything in Python that parses untrusted bytes, by atheris. It needs `pip install -r requirements/fuzz.txt`."""

import argparse
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

from tests.fuzz.targets import TARGETS

ROOT = Path(__file__).resolve().parents[2]
_CACHE = ROOT / ".cache" / "fuzz" / "python"
_LONGEST_INPUT = 8192
_LIMITS = ("-timeout=60", "-rss_limit_mb=2048")  # seconds for one input, and for the whole process
_NICE = 10


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add what this part takes beside the minutes."""
    parser.add_argument("--target", choices=TARGETS, help="one parser alone, instead of one after the other")


def run(minutes: float, given: argparse.Namespace) -> int:
    """Fuzz each target for its part of the minutes; return 1 if one was broken, 2 where atheris is missing."""
    if importlib.util.find_spec("atheris") is None:
        print("atheris is missing: .venv/bin/uv pip install -r requirements/fuzz.txt", file=sys.stderr)
        return 2
    names = [given.target] if given.target else list(TARGETS)
    seconds = max(1, round(minutes * 60 / len(names)))
    print("| parser | inputs | branches seen | result |\n|---|---|---|---|", flush=True)
    return max([_fuzz(name, seconds) for name in names])


def _fuzz(name: str, seconds: int) -> int:
    corpus, found = _CACHE / name, _CACHE / f"{name}-found-"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(TARGETS[name].seeds):
        (corpus / f"seed-{number}").write_bytes(seed)
    options = [f"-max_total_time={seconds}", f"-max_len={_LONGEST_INPUT}", "-print_final_stats=1", *_LIMITS]
    command = [sys.executable, "-m", "tests.fuzz", name, *options, f"-artifact_prefix={found}", str(corpus)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, errors="replace", check=False, preexec_fn=_yield_to_others
    )
    executed = re.search(r"number_of_executed_units:\s*(\d+)", done.stderr)
    branches = re.findall(r"cov: (\d+)", done.stderr)
    result = "held" if done.returncode == 0 else "BROKEN"
    row = (name, executed[1] if executed else "?", branches[-1] if branches else "?", result)
    print(f"| {' | '.join(row)} |", flush=True)
    if done.returncode != 0:
        said = (done.stdout + done.stderr)[-6000:]
        print(f"{said}\nThe input is in {found}*. To see it again:\n    {' '.join(command[:4])} FILE", flush=True)
    return int(done.returncode != 0)


def _yield_to_others() -> None:
    os.nice(_NICE)
