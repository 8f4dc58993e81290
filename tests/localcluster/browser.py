"""A real browser for tests: headless Chromium of Debian, driven by Playwright."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from playwright.async_api import ConsoleMessage, Error, Page, async_playwright

from tests.localcluster.binaries import debian_program, skip_or_fail
from tests.localcluster.gomodule import ComponentMissing

_HANGS_S = 120.0  # on a machine that is busy
_RELOADS = 10
# Tests run as root, and small containers have little shared memory.
_FLAGS = ("--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars", "--force-color-profile=srgb")


@dataclass
class Tab:
    """A page that is open. ``errors`` is what the page complained of: exceptions, and what its policy blocked."""

    page: Page
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.set_default_timeout(_HANGS_S * 1000)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", self._console)
        self.page.on("request", lambda request: self.requests.append(request.url))

    def _console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.errors.append(message.text)

    async def open(self, address: str) -> None:
        """Go to an address; again where other tests have just changed the machine's networks, as people reload."""
        for _ in range(_RELOADS):
            try:
                await self.page.goto(address, wait_until="commit")
            except Error as error:
                if "net::ERR_NETWORK_CHANGED" not in error.message:
                    raise
            else:
                return
        raise AssertionError(f"the machine's networks change all the time, and {address} is not loaded")

    async def run(self, script: str) -> Any:
        """Return the value of an expression, or what it promises."""
        return await self.page.evaluate(script)

    async def until(self, script: str) -> None:
        """Return as soon as an expression is true; Playwright's own wait needs eval, which pages may forbid."""
        try:
            async with asyncio.timeout(_HANGS_S):
                while True:
                    with contextlib.suppress(Error):  # the page may be loading
                        if await self.run(f"Boolean({script})"):
                            return
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"not within {_HANGS_S:g} s: {script}; errors: {self.errors}") from None

    async def key(self, name: str) -> None:
        """Press a key."""
        await self.page.keyboard.press(name)

    async def size(self, width: int, height: int) -> None:
        """Have the window so large, in CSS pixels."""
        await self.page.set_viewport_size({"width": width, "height": height})

    async def picture(self) -> bytes:
        """Return what the window shows, as PNG."""
        return await self.page.screenshot()


@contextlib.asynccontextmanager
async def browser() -> AsyncIterator[Tab]:
    """Run a browser with one empty page.

    Raises:
        ComponentMissing: there is no Chromium, and Debian's package cannot be installed.
    """
    program = debian_program("chromium")
    async with async_playwright() as playwright:
        started = await playwright.chromium.launch(executable_path=program, args=list(_FLAGS))
        context = await started.new_context(viewport={"width": 1360, "height": 860}, ignore_https_errors=True)
        yield Tab(await context.new_page())
        await started.close()


@pytest.fixture
async def tab() -> AsyncIterator[Tab]:
    """A tab of a real browser; without one the test is skipped, or fails where nothing may be missing."""
    try:
        async with browser() as found:
            yield found
    except ComponentMissing as missing:
        skip_or_fail(missing)
