"""``gputile selftest``: the proof that anyone can run, here on the simulated driver."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gputile.cli.main import app
from gputile.isolation import simulation
from tests.fakes.cuda import library

RUNNER = CliRunner()


def test_memory_limits_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """M4: every way to memory gets the limit less a context, and no more."""
    monkeypatch.setattr(simulation, "driver_directory", lambda: library().parent)
    done = RUNNER.invoke(app, ["selftest", "isolation", "--fake-driver", "--seconds", "0", "-o", "json"])
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)["memory"]
    assert {row["way"] for row in rows} > {"cuMemAlloc", "cuMemAllocAsync", "cuMemCreate", "graph allocation node"}
    assert all(row["got_mib"] <= row["limit_mib"] < row["asked_mib"] for row in rows)
    assert all(row["got_mib"] == row["limit_mib"] - 64 for row in rows if row["processes"] == 1)


def test_a_missed_limit_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """M4: where nothing is enforced, the proof fails and says what was got."""
    nothing = tmp_path / "none.so"
    nothing.write_bytes((library().parent / "libnvidia-ml.so.1").read_bytes())  # a library that enforces nothing
    monkeypatch.setattr(simulation, "driver_directory", lambda: library().parent)
    monkeypatch.setattr("gputile.isolation.memorycheck.library_path", lambda: nothing)
    done = RUNNER.invoke(app, ["selftest", "isolation", "--fake-driver", "--seconds", "0"])
    assert done.exit_code == 1
    assert "MISSED" in done.stdout


def test_unknown_functions_are_listed(tmp_path: Path) -> None:
    """M4: the functions that containers will not get are listed, and are an error for a script."""
    done = RUNNER.invoke(app, ["selftest", "symbols", "--driver", str(library()), "-o", "json"])
    assert done.exit_code == 1
    assert json.loads(done.stdout)["unknown"] == ["cuMemAllocQuantum"]
    (tmp_path / "no").write_text("text")
    done = RUNNER.invoke(app, ["selftest", "symbols", "--driver", str(tmp_path / "no")])
    assert done.exit_code == 2
