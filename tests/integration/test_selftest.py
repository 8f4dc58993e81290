"""``gputile selftest isolation`` measures shares of time, here on the simulated driver."""

import pytest
from typer.testing import CliRunner

from gputile.cli.app import app
from gputile.node.isolation import simulated_gpus
from tests.fakes.cuda import library
from tests.unit.docs.schemas import answer

pytestmark = pytest.mark.alone

RUNNER = CliRunner()


@pytest.mark.requirement("G4", "M5")
def test_shares_of_time_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command says what holds. Roughly is enough here: the machine may be busy with something else."""
    monkeypatch.setattr(simulated_gpus, "driver_directory", lambda: library().parent)
    done = RUNNER.invoke(app, ["selftest", "isolation", "--fake-driver", "--seconds", "3", "-o", "json"])
    rows = answer("selftest-isolation", done.stdout)["time"]
    assert [row["wantedRatio"] for row in rows] == [0, 0, 2, 0, 3]
    assert done.exit_code == (0 if all(row["holds"] for row in rows) else 1), done.output
    for row in rows:
        assert row["got"] > 0.5 * row["wanted"], rows
        assert row["wanted"] == 1 or row["got"] < 1.5 * row["wanted"], rows
        assert not row["wantedRatio"] or row["ratio"] == pytest.approx(row["wantedRatio"], rel=0.3), rows
