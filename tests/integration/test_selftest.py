"""``gputile selftest``: the proof that anyone can run, here on the simulated driver."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from gputile.cli.app import app
from gputile.cli.commands import selftest as command
from gputile.node.isolation import selftest
from tests.fakes.cuda import FakeGpus, library
from tests.unit.docs.schemas import answer

RUNNER = CliRunner()
WORDS = ["selftest", "isolation", "--limit-mib", "512"]


@pytest.fixture(autouse=True)
def simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = FakeGpus(tmp_path, [4096], context_mib=64, copy_bytes_per_us=64_000)
    monkeypatch.setattr(command, "_first_gpu", lambda: (gpus.uuids[0], gpus.environment()))
    monkeypatch.setattr(selftest, "SLACK_MIB", 128)


@pytest.mark.requirement("M4")
def test_memory_limits_hold() -> None:
    """Every way to memory gets the limit less a context, and no more."""
    done = RUNNER.invoke(app, [*WORDS, "--seconds", "0", "-o", "json"])
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
    monkeypatch.setattr(selftest, "library_path", lambda: nothing)
    done = RUNNER.invoke(app, [*WORDS, "--seconds", "0"])
    assert done.exit_code == 1
    assert "MISSED" in done.stdout


@pytest.mark.alone
@pytest.mark.requirement("G4", "M5")
def test_shares_of_time_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command says what holds. Roughly is enough here: the machine may be busy with something else."""
    monkeypatch.setattr(selftest, "CLOSE", 0.3)
    monkeypatch.setattr(selftest, "LEAST_ALONE", 0.5)
    for _ in range(3):
        done = RUNNER.invoke(app, [*WORDS, "--seconds", "1", "-o", "json"])
        rows = answer("selftest-isolation", done.stdout)["time"]
        assert [row["wantedRatio"] for row in rows] == [0, 0, 2, 0, 3]
        assert done.exit_code == (0 if all(row["holds"] for row in rows) else 1), done.output
        if all(row["holds"] and row["got"] > 0.5 * row["wanted"] for row in rows):
            return
    raise AssertionError(rows)
