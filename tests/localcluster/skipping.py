"""What a test does without the control plane's programs: fail on CI, be skipped elsewhere."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import pytest

from tests.localcluster import binaries
from tests.localcluster.toolchain import ComponentMissing

_outcome: dict[tuple[str, ...], dict[str, Path] | ComponentMissing] = {}


def prepare(names: Sequence[str] = binaries.CONTROL_PLANE) -> dict[str, Path] | ComponentMissing:
    """Find or build the programs, once a run: a failed build is not tried again for every test.

    To be called while tests are collected: a first build takes longer than the time limit of a test.
    """
    key = tuple(names)
    if key not in _outcome:
        try:
            _outcome[key] = binaries.find(names)
        except ComponentMissing as missing:
            _outcome[key] = missing
    return _outcome[key]


def components_or_skip(names: Sequence[str] = binaries.CONTROL_PLANE) -> dict[str, Path]:
    """Return the programs; where one is missing, skip the test, or fail it if this is CI (``CI=true``)."""
    outcome = prepare(names)
    if isinstance(outcome, ComponentMissing):
        skip_or_fail(outcome)
    return outcome


def skip_or_fail(missing: ComponentMissing) -> NoReturn:
    """End a test that cannot run here, with a line that says why."""
    if os.environ.get("CI", "").lower() in ("1", "true"):
        pytest.fail(f"on CI nothing may be missing: {missing}", pytrace=False)
    pytest.skip(f"missing: {missing}")
