"""``gputile selftest``: the proof that anyone can run, here on the simulated driver."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from gputile.cli.app import app
from gputile.node.isolation import selftest, simulated_gpus
from tests.fakes.cuda import library
from tests.unit.docs.schemas import answer

RUNNER = CliRunner()


@pytest.mark.requirement("M4")
def test_memory_limits_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every way to memory gets the limit less a context, and no more."""
    monkeypatch.setattr(simulated_gpus, "driver_directory", lambda: library().parent)
    done = RUNNER.invoke(app, ["selftest", "isolation", "--fake-driver", "--seconds", "0", "-o", "json"])
    assert done.exit_code == 0, done.output
    rows = answer("selftest-isolation", done.stdout)["memory"]
    assert {row["way"] for row in rows} > {"cuMemAlloc", "cuMemAllocAsync", "cuMemCreate", "graph allocation node"}
    assert all(row["gotMib"] <= row["limitMib"] < row["askedMib"] for row in rows)
    assert all(row["gotMib"] == row["limitMib"] - 64 for row in rows if row["processes"] == 1)


@pytest.mark.requirement("M4")
def test_a_missed_limit_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where nothing is enforced, the proof fails and says what was got."""
    nothing = tmp_path / "none.so"
    nothing.write_bytes((library().parent / "libnvidia-ml.so.1").read_bytes())  # a library that enforces nothing
    monkeypatch.setattr(simulated_gpus, "driver_directory", lambda: library().parent)
    monkeypatch.setattr("gputile.node.isolation.selftest.library_path", lambda: nothing)
    done = RUNNER.invoke(app, ["selftest", "isolation", "--fake-driver", "--seconds", "0"])
    assert done.exit_code == 1
    assert "MISSED" in done.stdout


@pytest.mark.alone
@pytest.mark.requirement("G4", "M5")
def test_shares_of_time_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command says what holds. Roughly is enough here: the machine may be busy with something else."""
    monkeypatch.setattr(simulated_gpus, "driver_directory", lambda: library().parent)
    monkeypatch.setattr(selftest, "CLOSE", 0.3)
    monkeypatch.setattr(selftest, "LEAST_ALONE", 0.5)
    for _ in range(3):
        done = RUNNER.invoke(app, ["selftest", "isolation", "--fake-driver", "--seconds", "1", "-o", "json"])
        rows = answer("selftest-isolation", done.stdout)["time"]
        assert [row["wantedRatio"] for row in rows] == [0, 0, 2, 0, 3]
        assert done.exit_code == (0 if all(row["holds"] for row in rows) else 1), done.output
        if all(row["holds"] and row["got"] > 0.5 * row["wanted"] for row in rows):
            return
    raise AssertionError(rows)
