"""Runs every test in parts: four beside each other, and then the tests that need the machine for themselves.

`make test` runs this. Each line of the output begins with the part that wrote it. Each part has files of its own below
``.cache/tests``: pytest's and hypothesis's caches, ``junit.xml``, and ``output.txt`` with all that it printed.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from tests.walk.table import table

HERE: Final = Path(__file__).resolve().parents[1]
STORE: Final = HERE / ".cache" / "tests"


@dataclass(frozen=True)
class Part:
    """One run of pytest: its name, and the arguments that choose its tests."""

    name: str
    arguments: tuple[str, ...]


NODES: Final = Part("nodes", ("tests/e2e", "-m", "node and not alone"))
PLANE: Final = Part("plane", ("tests/e2e", "-m", "not node and not alone"))
INTEGRATION: Final = Part("integration", ("tests/integration", "-m", "not alone"))  # most of its time it waits
NO_GPU: Final = "--ignore=tests/gpu"  # `make gpu` runs those, where there is one
OWN_PARTS: Final = ("--ignore=tests/e2e", "--ignore=tests/integration")
OTHERS: Final = Part("others", ("tests", *OWN_PARTS, NO_GPU, "-m", "not alone"))
ALONE: Final = Part("alone", ("tests", NO_GPU, "-m", "alone"))


def main() -> int:
    """Run all parts; return 0 if each of them passed."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have let it be ignored
    for number in (signal.SIGHUP, signal.SIGQUIT):  # as nohup does; tests send these, too
        signal.signal(number, signal.SIG_DFL)
    shutil.rmtree(STORE, ignore_errors=True)
    return run([NODES, PLANE, INTEGRATION, OTHERS], [ALONE])


def run(*phases: Sequence[Part], store: Path = STORE) -> int:
    """Run the parts of a phase at once and the phases in their order, whatever fails; return 0 if all parts passed.

    The last lines of the output say what failed and why, for a reader who sees no more than those.
    """
    codes: dict[Part, int] = {}
    for parts in phases:
        with ExitStack() as stack:
            programs = {part: stack.enter_context(_start(part, store / part.name)) for part in parts}
            for program in programs.values():
                stack.callback(program.terminate)  # where this process is told to end before them
            readers = [
                threading.Thread(target=_forward, args=(part, program, store / part.name))
                for part, program in programs.items()
            ]
            for reader in readers:
                reader.start()
            for reader in readers:
                reader.join()
            codes |= {part: program.wait() for part, program in programs.items()}
    print(*table(store.glob("*/junit.xml")), sep="\n")
    print(*(line for part in codes for line in _summary(part, codes[part], store / part.name)), sep="\n", flush=True)
    return int(any(codes.values()))


def _start(part: Part, directory: Path) -> subprocess.Popen[str]:
    directory.mkdir(parents=True)
    command = [sys.executable, "-m", "pytest", *part.arguments, f"--junit-xml={directory / 'junit.xml'}"]
    return subprocess.Popen(
        [*command, "-o", f"cache_dir={directory / 'pytest'}"],
        cwd=HERE,
        env={**os.environ, "HYPOTHESIS_STORAGE_DIRECTORY": str(directory / "hypothesis")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )


def _forward(part: Part, program: subprocess.Popen[str], directory: Path) -> None:
    """Print the lines of a part as they come, and keep them."""
    assert program.stdout is not None
    with (directory / "output.txt").open("w", encoding="utf-8") as kept:
        for line in program.stdout:
            kept.write(line)
            print(f"{part.name:11} | {line}", end="", flush=True)


def _summary(part: Part, code: int, directory: Path) -> list[str]:
    """Return what became of a part, and each test that failed."""
    lines = [f"{part.name}: {'passed' if code == 0 else f'FAILED, exit status {code}'}"]
    try:
        (suite,) = ElementTree.parse(directory / "junit.xml").getroot().iter("testsuite")
    except (OSError, ElementTree.ParseError):
        lines[0] += ", and said nothing of its tests"
    else:
        said = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}
        lines[0] += "".join(f", {number} {name}" for name, number in said.items())
        lines[0] += f", {float(suite.get('time', 0)):.0f} s"
        for case in suite.iter("testcase"):
            reasons = [reason for kind in ("failure", "error") for reason in case.findall(kind)]
            if reasons:
                lines.append(f"  {case.get('classname')}.{case.get('name')}")
            lines += [f"    {line}" for reason in reasons for line in _why(reason)]
    return lines if code == 0 else [*lines, f"  {directory / 'output.txt'}"]


def _why(reason: ElementTree.Element) -> list[str]:
    """Return the lines in which pytest says what was wrong, and where: three of each at most, 300 characters a line."""
    text = (reason.text or "").splitlines()
    said = [line for line in text if line.startswith("E ")] or (reason.get("message") or "").splitlines()
    places = [line for line in text if re.match(r"\S+\.py:\d+: ", line)]
    return [line[:300] for line in [*said[:3], *places[-3:]]]


if __name__ == "__main__":
    sys.exit(main())
