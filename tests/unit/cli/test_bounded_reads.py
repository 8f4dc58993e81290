"""An API server that is slow, or silent: who waits is told, and not for ever."""

import os
import pty
import subprocess

import pytest
from typer.testing import CliRunner

from gputile.cli.app import app
from gputile.cli.bounded_reads import duration_s
from tests.unit.cli.programs import arguments

LIVE = [["inspect"], ["explain", "p"], ["status"], ["simulate", "--from-cluster"]]


@pytest.mark.parametrize("words", LIVE)
def test_a_server_that_never_answers_is_an_error(silent: str, words: list[str]) -> None:
    done = CliRunner().invoke(app, [*words, "--kubeconfig", silent, "--request-timeout", "300ms"])
    assert done.exit_code == 1
    assert "did not answer GET /" in done.stderr
    assert "within 0.3 s; --request-timeout gives it more time" in done.stderr


@pytest.mark.parametrize("words", [["inspect"], ["explain", "p"], ["simulate"]])
def test_a_time_that_is_none_is_refused_also_where_no_server_is_asked(words: list[str]) -> None:
    done = CliRunner().invoke(app, [*words, "--cluster", "examples/cluster.yaml", "--request-timeout", "soon"])
    assert done.exit_code == 2
    assert done.stderr == "error: --request-timeout soon: say a time as 10s, 1m30s or 500ms; 0 waits for ever\n"


def test_a_terminal_says_whom_it_waits_for(silent: str) -> None:
    ours, theirs = pty.openpty()
    command = arguments("main", "inspect", "--kubeconfig", silent, "--request-timeout", "60s")
    with subprocess.Popen(command, stderr=theirs, stdout=subprocess.DEVNULL) as process:
        os.close(theirs)
        said = b""
        while b"waiting for http://127.0.0.1:" not in said:
            said += os.read(ours, 4096)
        process.kill()
    os.close(ours)


def test_nothing_is_shown_where_no_terminal_is(silent: str) -> None:
    command = arguments("main", "inspect", "--kubeconfig", silent, "--request-timeout", "1500ms")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "waiting" not in done.stderr + done.stdout


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10s", 10.0),
        ("1m30s", 90.0),
        ("500ms", 0.5),
        ("1.5h", 5400.0),
        ("7", 7.0),
        ("0", 1e9),
        ("0s", 1e9),
        (".5s", 0.5),
    ],
)
def test_times_as_kubectl_takes_them(text: str, seconds: float) -> None:
    assert duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "-1s", "1x", "s", "1s2", "٣s", "nan", "1e3s"])
def test_what_is_no_time_is_an_error(text: str, silent: str) -> None:
    done = CliRunner().invoke(app, ["inspect", "--kubeconfig", silent, "--request-timeout", text])
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
