"""Streams that take or give nothing: one line that says so, and an exit code, as for any other error."""

import subprocess
import sys
from pathlib import Path

import pytest

CLUSTER = """
apiVersion: gputile.io/v1alpha1
kind: Cluster
nodes: [{name: 'n', mode: share, gpus: {memory: 15GiB}}]
"""


@pytest.mark.parametrize(
    ("files", "streams", "code", "said"),
    [
        ("--cluster c", ">/dev/full", 1, "error: cannot write to standard output: No space left on device"),
        ("--cluster c -o json", ">/dev/full", 1, "error: cannot write to standard output: No space left on device"),
        ("--cluster c", ">&-", 1, "error: cannot write to standard output: Bad file descriptor"),
        ("--cluster c -f -", "<&-", 2, "error: standard input: it is closed"),
        ("--cluster c -f -", "0>/dev/null", 2, "error: standard input: Bad file descriptor"),
        ("--cluster c", "| true", 0, ""),
    ],
)
def test_streams_that_cannot_be_used_are_an_error(
    tmp_path: Path, files: str, streams: str, code: int, said: str
) -> None:
    (tmp_path / "c").write_text(CLUSTER, encoding="utf-8")
    program = f"{sys.executable} -c 'from gputile.cli.main import main; main()' simulate {files} {streams}"
    done = subprocess.run(["bash", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.strip()) == (code, said)
