"""The parsers of untrusted bytes: those in C by libFuzzer under sanitizers, those in Python by atheris.

The first need clang (Debian: `apt-get install clang`), the others `pip install -r requirements/fuzz.txt`.
"""

import argparse
import importlib.util
import re
import shutil
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from hatch_build import ROOT, SOURCES, library_sources

from tests.fuzz.targets import TARGETS
from tests.native.fuzzing import SEEDS, WORDS

_CACHE = ROOT / ".cache" / "fuzz"
# clang does not say so itself, and the library's own dlsym must stay away from its sanitizers.
_FLAGS = ["-std=gnu11", "-O1", "-g", "-fno-sanitize-recover=all", "-D__SANITIZE_ADDRESS__=1"]
_SANITIZERS = "-fsanitize=fuzzer,address,undefined"


class Fuzzing(ABC):
    """Fuzzes one parser after the other. ``seeds`` are the first inputs of each."""

    seeds: ClassVar[Mapping[str, Sequence[bytes]]]
    name: str

    @abstractmethod
    def missing(self) -> str:
        """Return what has to be installed, "" for nothing."""

    @abstractmethod
    def command(self, target: str, corpus: Path) -> list[str | Path]:
        """Return what fuzzes one parser, to which libFuzzer's options are added."""

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add what this part takes beside the minutes."""
        parser.add_argument("--target", choices=self.seeds, help="one parser alone, instead of one after the other")

    def run(self, minutes: float, given: argparse.Namespace) -> int:
        """Fuzz each parser for its part of the minutes; return 1 if one was broken, 2 where something is missing."""
        if missing := self.missing():
            print(missing, file=sys.stderr)
            return 2
        targets = [given.target] if given.target else list(self.seeds)
        seconds = max(1, round(minutes * 60 / len(targets)))
        print("| parser | inputs | branches seen | result |\n|---|---|---|---|", flush=True)
        return max([self._fuzz(target, seconds) for target in targets])

    def _fuzz(self, target: str, seconds: int) -> int:
        corpus, found = _CACHE / self.name / target, _CACHE / self.name / f"{target}-found-"
        corpus.mkdir(parents=True, exist_ok=True)
        for number, seed in enumerate(self.seeds[target]):
            (corpus / f"seed-{number}").write_bytes(seed)
        options = [f"-max_total_time={seconds}", "-max_len=8192", "-print_final_stats=1", f"-artifact_prefix={found}"]
        command = [*self.command(target, corpus), *options, corpus]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace", check=False)
        executed = re.search(r"number_of_executed_units:\s*(\d+)", done.stderr)
        branches = re.findall(r"cov: (\d+)", done.stderr)
        result = "held" if done.returncode == 0 else "BROKEN"
        row = (target, executed[1] if executed else "?", branches[-1] if branches else "?", result)
        print(f"| {' | '.join(row)} |", flush=True)
        if done.returncode != 0:
            print((done.stdout + done.stderr)[-6000:], file=sys.stderr)
            print(f"The input is in {found}*.", file=sys.stderr)
        return int(done.returncode != 0)


class PythonParsers(Fuzzing):
    """The parsers in Python."""

    name = "python"
    seeds: ClassVar = {name: target.seeds for name, target in TARGETS.items()}

    def missing(self) -> str:
        if importlib.util.find_spec("atheris") is not None:
            return ""
        return "atheris is missing: .venv/bin/uv pip install -r requirements/fuzz.txt"

    def command(self, target: str, corpus: Path) -> list[str | Path]:
        return ["nice", "-n10", sys.executable, "-m", "tests.fuzz", target, "-timeout=60", "-rss_limit_mb=2048"]


class NativeParsers(Fuzzing):
    """The library's parsers."""

    name = "native"
    seeds: ClassVar = SEEDS

    def missing(self) -> str:
        return "" if shutil.which("clang") else "clang is missing: apt-get install clang"

    def command(self, target: str, corpus: Path) -> list[str | Path]:
        path = corpus.with_name(f"fuzz-{target}")
        harness = ROOT / "tests" / "native" / "fuzz.c"
        build: list[str | Path] = [
            "clang",
            *_FLAGS,
            _SANITIZERS,
            f"-DTARGET=fuzz_{target}",
            f"-I{SOURCES}",
            "-o",
            path,
            harness,
        ]
        subprocess.run([*build, *library_sources(), "-lpthread", "-ldl"], check=True)
        if target not in WORDS:
            return [path]
        words = corpus.with_name(f"{target}.dict")
        escaped = ["".join(f"\\x{byte:02x}" for byte in word) for word in WORDS[target]]
        words.write_text("".join(f'"{word}"\n' for word in escaped))
        return [path, f"-dict={words}"]
