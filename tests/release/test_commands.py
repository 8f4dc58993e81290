"""What ``python -m release`` says where it cannot build."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def release(*arguments: str, path: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "release", *arguments]
    environment = {**os.environ, "PATH": path}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_a_missing_program_is_named_with_what_installs_it(tmp_path: Path) -> None:
    done = release("image", f"--output={tmp_path}", path=str(tmp_path))
    assert done.returncode == 2
    assert done.stderr == (
        "error: mmdebstrap is not installed, which unpacks Debian's packages: apt-get install mmdebstrap\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_step_that_fails_is_named(tmp_path: Path) -> None:
    failing = tmp_path / "mmdebstrap"
    failing.write_text("#!/bin/sh\necho the archive does not answer >&2\nexit 25\n")
    failing.chmod(0o755)
    done = release("image", f"--output={tmp_path / 'dist'}", path=f"{tmp_path}:/usr/bin:/bin")
    assert done.returncode == 2
    assert done.stderr == "the archive does not answer\nerror: mmdebstrap ended with 25: see its output above\n"


def test_the_build_files_step_needs_nothing_but_the_standard_library() -> None:
    """Where the image is built by its Dockerfile only uv and hatchling are installed."""
    command = [sys.executable, "-S", "-c", "import release.root_filesystem"]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("wheels",),
        ("image", "--registry=x"),
        ("all", "--url=example.com"),
        ("all", "--url=https://x y"),
        ("all", "--repository=A B"),
        ("all", "--repository=example.com/Gputile"),
        ("image", "--repository=x/y:1.0"),
        ("image", "--repository="),
        ("image", "--repository=x/y@sha256:0"),
    ],
)
def test_what_is_asked_for_wrongly_gets_the_usage(arguments: tuple[str, ...]) -> None:
    done = release(*arguments, path=os.environ["PATH"])
    assert done.returncode == 2
    assert "usage: python -m release" in done.stderr


def test_make_hands_on_where_the_files_and_the_image_will_be() -> None:
    def made(*variables: str) -> list[str]:
        command = ["make", "--dry-run", "--no-print-directory", "release", *variables]
        told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        return shlex.split(told.splitlines()[-1])

    assert made("URL=", "REPOSITORY=")[1:] == ["-m", "release", "all"]
    for url, repository in (("https://example.org/v1", "example.org/gputile"), ("https://a b", "x; touch y")):
        given = made(f"URL={url}", f"REPOSITORY={repository}")
        assert given[1:] == ["-m", "release", "all", f"--url={url}", f"--repository={repository}"]
    told = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert all(variable in told for variable in ("URL=", "REPOSITORY="))
