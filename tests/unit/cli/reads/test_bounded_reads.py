"""An API server that is slow, or silent: who waits is told, and not for ever."""

import json
import os
import pty
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gputile.cli.app import app
from gputile.cli.options import FOR_EVER_S, time_limit_s
from tests.unit.cli.programs import arguments

LIVE = [["inspect"], ["status"]]  # the others read as inspect does


@pytest.mark.parametrize("words", LIVE)
def test_a_server_that_never_answers_is_an_error(silent: str, words: list[str]) -> None:
    done = CliRunner().invoke(app, [*words, "--kubeconfig", silent, "--request-timeout", "300ms"])
    assert done.exit_code == 1
    assert "no complete answer within 0.3 s; set a longer --request-timeout" in done.stderr


def test_a_time_that_is_none_is_refused_also_where_no_server_is_asked() -> None:
    done = CliRunner().invoke(app, ["inspect", "--cluster", "examples/cluster.yaml", "--request-timeout", "soon"])
    assert done.exit_code == 2
    assert (
        done.stderr == "error: --request-timeout soon: use a duration such as 10s, 1m30s or 500ms; 0 means no limit\n"
    )


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


def with_plugin(directory: Path, script: str) -> str:
    """Return a kubeconfig whose user comes from an exec plugin in the shell's language."""
    (directory / "plugin").write_text(f"#!/bin/sh\n{script}\n")
    (directory / "plugin").chmod(0o755)
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "./plugin"}
    document = {
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {"exec": plugin}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    (directory / "config").write_text(json.dumps(document))
    return str(directory / "config")


@pytest.mark.requirement("B4")
def test_a_credential_plugin_that_never_answers_is_named_and_ended(tmp_path: Path) -> None:
    config = with_plugin(tmp_path, "exec sleep 100")
    command = arguments("main", "inspect", "--kubeconfig", config, "--request-timeout", "2s")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    note, error = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (2, "")
    assert note == f"note: waiting for the credential plugin {tmp_path}/plugin"
    assert error == (
        f"error: cannot read the cluster: exec plugin {tmp_path}/plugin returned no credential within 2 s "
        "and was killed; run the plugin by itself to see what it waits for, or set a longer --request-timeout"
    )


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10s", 10.0),
        ("1m30s", 90.0),
        ("500ms", 0.5),
        ("1.5h", 5400.0),
        ("7", 7.0),
        ("0", FOR_EVER_S),
        ("0s", FOR_EVER_S),
        (".5s", 0.5),
    ],
)
def test_times_as_kubectl_takes_them(text: str, seconds: float) -> None:
    assert time_limit_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "-1s", "1s2"])
def test_what_is_no_time_is_an_error(text: str, silent: str) -> None:
    done = CliRunner().invoke(app, ["inspect", "--kubeconfig", silent, "--request-timeout", text])
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
