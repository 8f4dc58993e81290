"""The container image's build file: what it copies is there, and the files of its context make a wheel that runs."""

import json
import re
import subprocess
import sys
import zipfile
from fnmatch import fnmatch
from pathlib import Path

import pytest
from release.image import CONFIG
from release.root_filesystem import SUITE

from tests.chart.helmcli import pod_specs, render

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


def context() -> list[str]:
    """Return what .dockerignore lets into the context: all is ignored but what a line with "!" names."""
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert rules[0] == "*"
    return [rule[1:] for rule in rules if rule.startswith("!")]


def test_the_image_runs_as_nobody_like_the_charts_pods() -> None:
    """The agent is root by its own pod's securityContext."""
    (user,) = [rest for name, rest in instructions() if name == "USER"]
    specs = pod_specs(render())
    contexts = {name: spec["securityContext"] for name, spec in specs.items()}
    assert user == "65532:65532"
    for name, found in contexts.items():
        assert found["runAsUser"] == (0 if name == "gputile-agent" else 65532)
    assert instructions()[-2:] == [("ENTRYPOINT", '["gputile"]'), ("CMD", '["--help"]')]


def test_the_image_is_configured_as_that_of_make_image() -> None:
    """What builds is not what runs."""
    assert [rest for name, rest in instructions() if name == "FROM"] == [f"debian:{SUITE}-slim AS build", "scratch"]
    last = dict(instructions())
    assert dict(re.findall(r"([A-Z]+)=(\S+)", last["ENV"])) == CONFIG.environment
    assert dict(re.findall(r'(\S+)="([^"]*)"', last["LABEL"])) == {
        **CONFIG.labels,
        "org.opencontainers.image.revision": "$REVISION",
    }
    assert (last["USER"], json.loads(last["ENTRYPOINT"]), json.loads(last["CMD"])) == (
        CONFIG.user,
        list(CONFIG.entrypoint),
        list(CONFIG.command),
    )


def test_everything_that_is_copied_is_in_the_context() -> None:
    allowed = context()
    for entry in allowed:
        assert (ROOT / entry).exists(), f".dockerignore lets in {entry}, which is not there"
    for name, rest in instructions():
        if name != "COPY" or rest.startswith("--from"):
            continue
        for source in rest.split()[:-1]:
            assert (ROOT / source).exists()
            assert source == "." or any(fnmatch(source, each) or source.startswith(f"{each}/") for each in allowed)


def test_the_files_of_the_context_make_a_wheel(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for entry in context():
        (source / entry).parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-r", str(ROOT / entry), str(source / entry)], check=True)
    command: list[str | Path] = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path / "dist"]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    if done.returncode and "No module named hatchling" in done.stderr:
        pytest.skip("missing: hatchling")
    assert done.returncode == 0, done.stderr
    (wheel,) = (tmp_path / "dist").glob("gputile-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "gputile/cli/main.py" in names
    assert not [name for name in names if name.startswith("tests/")]
    assert any(name.endswith(".so") for name in names), "the C library is not in the wheel"
