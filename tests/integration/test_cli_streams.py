"""Streams that take or give nothing: one line that says so, and an exit code, as for any other error."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CLUSTER = """
apiVersion: gputile.io/v1alpha1
kind: Cluster
nodes: [{name: 'n', mode: share, gpus: {memory: 15GiB}}]
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {name: p}
spec: {containers: [{name: c, image: i}], tolerations: [{operator: Exists}]}
"""


@pytest.mark.parametrize(
    ("words", "streams", "code", "said"),
    [
        (
            "simulate --cluster c -f p",
            ">/dev/full",
            1,
            "error: cannot write to standard output: No space left on device",
        ),
        (
            "simulate --cluster c -f p -o json",
            ">/dev/full",
            1,
            "error: cannot write to standard output: No space left on device",
        ),
        ("simulate --cluster c -f p", ">&-", 1, "error: cannot write to standard output: Bad file descriptor"),
        ("simulate --cluster c -f -", "<&-", 2, "error: standard input: it is closed"),
        ("simulate --cluster c -f -", "0>/dev/null", 2, "error: standard input: Bad file descriptor"),
        ("simulate --cluster c -f p", "| true", 0, ""),
        *(
            (words, ">&-", 1, "error: cannot write the output: Bad file descriptor")
            for words in ("--help", "simulate --help", "selftest --help", "selftest isolation -h")
        ),
        *(
            (words, streams, 1, f"error: cannot write to standard output: {why}")
            for words in ("version", "version -o json", "schema", "simulate --cluster c -f p -o yaml")
            for streams, why in ((">&-", "Bad file descriptor"), (">/dev/full", "No space left on device"))
        ),
        ("simulate --cluster nope", "2>&-", 2, ""),
        ("simulate --cluster nope", "<&- >&- 2>&-", 2, ""),
        ("--version", ">&-", 1, "error: cannot write the output: Bad file descriptor"),
        ("top --cluster c --config d", ">&-", 1, "error: cannot write to standard output: Bad file descriptor"),
    ],
)
def test_streams_that_cannot_be_used_are_an_error(
    tmp_path: Path, words: str, streams: str, code: int, said: str
) -> None:
    (tmp_path / "c").write_text(CLUSTER, encoding="utf-8")
    (tmp_path / "p").write_text(POD, encoding="utf-8")
    (tmp_path / "d").write_text("gpuMemoryUnit: 1GiB", encoding="utf-8")
    program = f"{sys.executable} -c 'from gputile.cli.main import main; main()' {words} {streams}"
    done = subprocess.run(["bash", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.strip()) == (code, said)


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_file_that_takes_a_part_only_is_an_error(tmp_path: Path, unbuffered: str) -> None:
    (tmp_path / "c").write_text(CLUSTER, encoding="utf-8")
    (tmp_path / "p").write_text(POD, encoding="utf-8")
    program = f"{sys.executable} -c 'from gputile.cli.main import main; main()' simulate --cluster c -f p -o html"
    # The limit would cut off what Python compiles and keeps, too, for all who import it later.
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered, "PYTHONDONTWRITEBYTECODE": "1"}
    command = ["bash", "-c", f"ulimit -f 1; {program} >out"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, (tmp_path / "out").stat().st_size) == (1, 1024)
    assert done.stderr.strip() == "error: cannot write to standard output: File too large"
