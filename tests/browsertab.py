"""The tab of a real browser for a test; without one the test is skipped, or fails where nothing may be missing."""

from collections.abc import AsyncIterator

import pytest

from tests.browser import Tab, browser
from tests.localcluster.skipping import skip_or_fail
from tests.localcluster.toolchain import ComponentMissing


@pytest.fixture
async def tab() -> AsyncIterator[Tab]:
    try:
        async with browser() as found:
            await found.size(1360, 860)
            yield found
    except ComponentMissing as missing:
        skip_or_fail(missing)
