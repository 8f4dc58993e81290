"""The real binding, in this process, on machines of our own."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gputile.node.nvml.nvml_probe import NvmlSession
from tests.fakes import nvml as fake

Present = Callable[[str], fake.FakeMachine]
ProbeOf = Callable[[str], tuple[fake.FakeMachine, NvmlSession]]


@pytest.fixture
def present(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Present:
    """Return what makes this process see one of the machines."""
    fake.preload()

    def show(name: str) -> fake.FakeMachine:
        machine = fake.MACHINES[name](tmp_path / "machine")
        monkeypatch.setenv(fake.STATE_VARIABLE, str(machine.path))
        return machine

    return show


@pytest.fixture
def probe_of(present: Present) -> Iterator[ProbeOf]:
    """Return what opens a probe of one of the machines; it is closed after the test."""
    opened: list[NvmlSession] = []

    def show(name: str) -> tuple[fake.FakeMachine, NvmlSession]:
        machine = present(name)
        opened.append(NvmlSession())
        return machine, opened[-1]

    yield show
    for probe in opened:
        probe.close()
