"""Measurements of time may be as long as the command allows: a probe is waited for longer than it measures."""

import pytest
from typer.testing import CliRunner

from gputile.cli.app import app
from gputile.cli.commands.selftest import LONGEST_S
from gputile.node.isolation.selftest import longest_s

pytestmark = pytest.mark.requirement("G4", "M5")


@pytest.mark.parametrize("seconds", [0.5, 4.0, 119.0, 121.0, float(LONGEST_S)])
def test_a_probe_is_waited_for_longer_than_it_measures(seconds: float) -> None:
    assert longest_s(seconds) >= seconds + 60


@pytest.mark.parametrize("seconds", [str(LONGEST_S + 1), "-1", "nan", "inf", "x"])
def test_no_measurement_is_longer_than_that(seconds: str) -> None:
    result = CliRunner().invoke(app, ["selftest", "isolation", "--fake-driver", "--seconds", seconds])
    assert result.exit_code == 2
    assert "--seconds" in result.stderr
