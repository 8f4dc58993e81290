"""``gputile selftest isolation`` measures shares of time, here on the simulated driver."""

import pytest
from typer.testing import CliRunner

from gputile.cli.app import app
from gputile.node.isolation import selftest, simulated_gpus
from tests.fakes.cuda import library
from tests.unit.docs.schemas import answer

pytestmark = pytest.mark.alone

RUNNER = CliRunner()


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
