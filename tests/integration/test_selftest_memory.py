"""``gputile selftest``: the proof that anyone can run, here on the simulated driver."""

import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from shutil import copytree
from subprocess import Popen

import pytest
from typer.testing import CliRunner

from gputile.cli.app import app
from gputile.node.isolation import selftest, simulated_gpus
from gputile.node.isolation.library import USAGE, GpuLimit, encode_limits
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


def _one_limit_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second allocation has the first one's limit."""
    monkeypatch.setattr(selftest, "encode_limits", lambda gpus: encode_limits([GpuLimit(gpus[0].uuid, 512)]))


def _a_limit_for_each_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of one allocation do not see what the others hold."""
    start, copies = selftest.start_program, count()

    def alone(way: str, mib: int, place: Path, environment: Mapping[str, str], stack: ExitStack) -> Popen[str]:
        own = place.with_name(f"copy{next(copies)}")
        copytree(place, own)
        return start(way, mib, own, environment, stack)

    monkeypatch.setattr(selftest, "start_program", alone)


def _one_account_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the second allocation holds is counted as the first one's too."""
    start = selftest.start_program

    def mixed(way: str, mib: int, place: Path, environment: Mapping[str, str], stack: ExitStack) -> Popen[str]:
        if place.name == "1":
            (place / USAGE).unlink()
            (place / USAGE).hardlink_to(place.with_name("0") / USAGE)
        return start(way, mib, place, environment, stack)

    monkeypatch.setattr(selftest, "start_program", mixed)


@pytest.mark.requirement("M4")
@pytest.mark.parametrize("fault", [_one_limit_for_all, _a_limit_for_each_process, _one_account_for_all])
def test_a_fault_between_processes_is_seen(
    monkeypatch: pytest.MonkeyPatch, fault: Callable[[pytest.MonkeyPatch], None]
) -> None:
    """Limits that hold for a process alone, and not for two allocations side by side, fail the proof."""
    monkeypatch.setattr(simulated_gpus, "driver_directory", lambda: library().parent)
    fault(monkeypatch)
    done = RUNNER.invoke(app, ["selftest", "isolation", "--fake-driver", "--seconds", "0", "-o", "json"])
    rows = json.loads(done.stdout)["memory"]
    assert all(row["holds"] for row in rows if row["processes"] == 1)
    assert not all(row["holds"] for row in rows if row["processes"] > 1)
    assert done.exit_code == 1


@pytest.mark.requirement("M4")
def test_unknown_functions_are_listed(tmp_path: Path) -> None:
    """The functions that containers will not get are listed, and are an error for a script."""
    done = RUNNER.invoke(app, ["selftest", "symbols", "--driver", str(library()), "-o", "json"])
    assert done.exit_code == 1
    assert answer("selftest-symbols", done.stdout)["unknown"] == ["cuMemAllocQuantum"]
    (tmp_path / "no").write_text("text")
    done = RUNNER.invoke(app, ["selftest", "symbols", "--driver", str(tmp_path / "no")])
    assert done.exit_code == 2
