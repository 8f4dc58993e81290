"""Builds helm, where it is not cached yet, before the first test's clock runs, and visibly."""

import pytest

from tests.localcluster.binaries import HELM, prepare_visibly


def pytest_collection_finish(session: pytest.Session) -> None:
    if not session.config.option.collectonly and any("tests/chart/" in str(item.path) for item in session.items):
        prepare_visibly(session, HELM)
