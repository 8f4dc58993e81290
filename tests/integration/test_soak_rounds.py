"""The soak itself: a failure ends it, and says how to see it again."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.soak.stateful import soak

FAILS_AT_TIMES = """
from hypothesis import given, strategies as st


@given(st.integers())
def test_small(number):
    assert number < 1000
"""


def test_a_round_that_fails_ends_the_soak_and_tells_how_to_see_it_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "test_numbers.py"
    file.write_text(FAILS_AT_TIMES)
    assert soak([file], minutes=0) == 1
    said = capsys.readouterr().out
    assert "round 1, minute 0 of 0: test_numbers, seed " in said
    assert "number=1000" in said
    seed = said.partition("seed ")[2].partition(",")[0]
    assert said.rstrip().endswith(f"{file} --hypothesis-seed={seed}")


def test_rounds_that_pass_go_on_until_the_time_is_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "test_nothing.py"
    file.write_text("def test_nothing():\n    pass\n")
    assert soak([file], minutes=0) == 0
    assert capsys.readouterr().out.endswith("rounds that passed: 1\n")


def test_a_failure_that_chance_found_names_the_seed_that_finds_it_again(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text((Path(__file__).parents[1] / "conftest.py").read_text())
    (tmp_path / "test_numbers.py").write_text(FAILS_AT_TIMES)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(tmp_path)]
    own = {**os.environ, "HYPOTHESIS_STORAGE_DIRECTORY": str(tmp_path / ".hypothesis")}
    said = subprocess.run(command, cwd=tmp_path, env=own, capture_output=True, text=True, check=False).stdout
    (said_so,) = [line for line in said.splitlines() if line.startswith("Tests that chance")]
    seed = said_so.partition("--hypothesis-seed=")[2]
    (tmp_path / ".hypothesis").rename(tmp_path / "forgotten")
    again = subprocess.run(
        [*command, f"--hypothesis-seed={seed}"], cwd=tmp_path, env=own, capture_output=True, text=True, check=False
    )
    assert again.returncode == 1
