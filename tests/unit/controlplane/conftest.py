"""Settings for every test of the control plane."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def all_tests_stay_frozen() -> Iterator[None]:
    """Freeze again what the root's conftest has frozen, where a configuration has followed another."""
    yield
    if gc.get_freeze_count() == 0:
        gc.collect()
        gc.freeze()
