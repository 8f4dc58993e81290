"""The C parsers by libFuzzer, under sanitizers. It needs clang (Debian: `apt-get install clang`)."""

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

from hatch_build import ROOT, SOURCES, library_sources

from tests.native.fuzzing import SEEDS, WORDS

_CACHE = ROOT / ".cache" / "fuzz" / "native"
_SANITIZERS = "-fsanitize=fuzzer,address,undefined"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add what this part takes beside the minutes."""
    parser.add_argument("--target", choices=SEEDS, help="one parser alone, instead of one after the other")


def run(minutes: float, given: argparse.Namespace) -> int:
    """Fuzz each parser for its part of the minutes; return 1 if one does harm, 2 if there is no clang."""
    if shutil.which("clang") is None:
        print("clang is missing: apt-get install clang", file=sys.stderr)
        return 2
    targets = [given.target] if given.target else list(SEEDS)
    seconds = max(1, round(minutes * 60 / len(targets)))
    print("| parser | inputs | branches seen | result |\n|---|---|---|---|")
    return max(_fuzz(target, seconds) for target in targets)


def _fuzz(target: str, seconds: int) -> int:
    corpus, found = _CACHE / target, _CACHE / f"{target}-found-"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(SEEDS[target]):
        (corpus / f"seed-{number}").write_bytes(seed)
    options = [f"-max_total_time={seconds}", "-max_len=8192", "-print_final_stats=1", f"-artifact_prefix={found}"]
    if target in WORDS:
        words = _CACHE / f"{target}.dict"
        words.write_text("".join(f'"{_escaped(word)}"\n' for word in WORDS[target]))
        options.append(f"-dict={words}")
    command: list[str | Path] = [_build(target), *options, corpus]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    executed = re.search(r"number_of_executed_units:\s*(\d+)", done.stderr)
    branches = re.findall(r"cov: (\d+)", done.stderr)
    result = "no harm" if done.returncode == 0 else "HARM"
    print(
        f"| {target} | {executed[1] if executed else '?'} | {branches[-1] if branches else '?'} | {result} |",
        flush=True,
    )
    if done.returncode != 0:
        print(done.stderr[-4000:], file=sys.stderr)
    return int(done.returncode != 0)


def _build(target: str) -> Path:
    path = _CACHE / f"fuzz-{target}"
    # clang does not say so itself, and the library's own dlsym must stay away from its sanitizers.
    flags = ["-std=gnu11", "-O1", "-g", _SANITIZERS, "-fno-sanitize-recover=all", "-D__SANITIZE_ADDRESS__=1"]
    harness = ROOT / "tests" / "native" / "fuzz.c"
    link = ["-lpthread", "-ldl"]
    command: list[str | Path] = [
        "clang",
        *flags,
        f"-DTARGET=fuzz_{target}",
        f"-I{SOURCES}",
        "-o",
        path,
        harness,
        *library_sources(),
        *link,
    ]
    subprocess.run(command, check=True)
    return path


def _escaped(word: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word)
