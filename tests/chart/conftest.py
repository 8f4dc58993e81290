"""Builds helm, where it is not cached yet, before the first test's clock runs, and visibly."""

import pytest

from tests.chart.helmcli import prepare


def pytest_collection_finish(session: pytest.Session) -> None:
    if session.config.option.collectonly or not any("tests/chart/" in str(item.path) for item in session.items):
        return
    capture = session.config.pluginmanager.getplugin("capturemanager")
    if capture is None:
        prepare()
        return
    with capture.global_and_fixture_disabled():
        prepare()
