"""A real browser for tests: headless Chromium, driven over its DevTools protocol."""

import asyncio
import base64
import contextlib
import itertools
import json
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.localcluster.binaries import debian_program, skip_or_fail
from tests.localcluster.gomodule import ComponentMissing

START_S = 60.0
ANSWER_S = 60.0  # a bound for what hangs, on a machine that is busy
_RELOADS = 10
_FLAGS = (
    "--headless=new",
    "--no-sandbox",  # tests run as root
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--remote-debugging-port=0",
)


class BrowserError(Exception):
    """The browser did not do what it was told, or a script failed in it."""


@dataclass
class Tab:
    """A page that is open. ``errors`` is what the page complained of: exceptions, and what its policy blocked."""

    socket: aiohttp.ClientWebSocketResponse
    session: str
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    _numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))
    _answers: dict[int, "asyncio.Future[dict[str, Any]]"] = field(default_factory=dict)

    async def listen(self) -> None:
        """Take what the browser says until it is gone."""
        async for message in self.socket:
            said = json.loads(message.data)
            if "id" in said:
                self._answers.pop(said["id"]).set_result(said)
            elif said["method"] == "Runtime.exceptionThrown":
                details = said["params"]["exceptionDetails"]
                self.errors.append(details.get("exception", {}).get("description") or details["text"])
            elif said["method"] == "Log.entryAdded" and said["params"]["entry"]["level"] == "error":
                self.errors.append(said["params"]["entry"]["text"])
            elif said["method"] == "Network.requestWillBeSent":
                self.requests.append(said["params"]["request"]["url"])

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol."""
        number = next(self._numbers)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        command = {"id": number, "method": method, "params": parameters}
        if self.session:
            command["sessionId"] = self.session
        await self.socket.send_json(command)
        async with asyncio.timeout(ANSWER_S):
            said = await answer
        if "error" in said:
            raise BrowserError(f"{method}: {said['error']}")
        result: dict[str, Any] = said["result"]
        return result

    async def open(self, address: str) -> None:
        """Go to an address; again where other tests have just changed the machine's networks, as people reload."""
        for _ in range(_RELOADS):
            found = await self.call("Page.navigate", url=address)
            if found.get("errorText") != "net::ERR_NETWORK_CHANGED":
                break
        if found.get("errorText"):
            raise BrowserError(f"{address}: {found['errorText']}")

    async def run(self, script: str) -> Any:
        """Return the value of an expression, or what it promises."""
        found = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in found:
            details = found["exceptionDetails"]
            raise BrowserError(details.get("exception", {}).get("description") or details["text"])
        return found["result"].get("value")

    async def until(self, script: str, seconds: float = 60.0) -> None:
        """Return as soon as an expression is true."""
        try:
            async with asyncio.timeout(seconds):
                while True:
                    with contextlib.suppress(BrowserError):  # the page may be loading
                        if await self.run(f"Boolean({script})"):
                            return
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"not within {seconds:g} s: {script}; errors: {self.errors}") from None

    async def key(self, name: str) -> None:
        """Press a key."""
        text = {"text": name} if len(name) == 1 else {"text": "\r"} if name == "Enter" else {}
        await self.call("Input.dispatchKeyEvent", type="keyDown", key=name, code=name, **text)
        await self.call("Input.dispatchKeyEvent", type="keyUp", key=name, code=name)

    async def size(self, width: int, height: int, *, dark: bool = False, scale: float = 1.0) -> None:
        """Have the window so large, in CSS pixels, and prefer light or dark."""
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])

    async def picture(self) -> bytes:
        """Return what the window shows, as PNG."""
        found = await self.call("Page.captureScreenshot", format="png")
        return base64.b64decode(found["data"])


@contextlib.asynccontextmanager
async def browser() -> AsyncIterator[Tab]:
    """Run a browser with one empty page.

    Raises:
        ComponentMissing: there is no Chromium, and Debian's package cannot be installed.
    """
    program = debian_program("chromium")
    home = Path(tempfile.mkdtemp(prefix="gputile-browser-"))
    environment = {**os.environ, "HOME": str(home), "XDG_CONFIG_HOME": str(home), "XDG_CACHE_HOME": str(home)}
    process = await asyncio.create_subprocess_exec(
        program,
        *_FLAGS,
        f"--user-data-dir={home / 'profile'}",
        "about:blank",
        env=environment,
        start_new_session=True,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        address = await _address(home / "profile" / "DevToolsActivePort", process)
        async with aiohttp.ClientSession() as client, client.ws_connect(address, max_msg_size=0) as socket:
            tab = Tab(socket, "")
            listening = asyncio.create_task(tab.listen())
            try:
                made = await tab.call("Target.createTarget", url="about:blank")
                attached = await tab.call("Target.attachToTarget", targetId=made["targetId"], flatten=True)
                tab.session = attached["sessionId"]
                for domain in ("Page", "Runtime", "Log", "Network", "Performance"):
                    await tab.call(f"{domain}.enable")
                yield tab
            finally:
                listening.cancel()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        shutil.rmtree(home, ignore_errors=True)


async def _address(file: Path, process: asyncio.subprocess.Process) -> str:
    """Return where the browser listens, as soon as it says so."""
    async with asyncio.timeout(START_S):
        while not (found := _read(file)):
            if process.returncode is not None:
                raise BrowserError(f"the browser ended with exit code {process.returncode}")
            await asyncio.sleep(0.05)
    port, path = found[:2]
    return f"ws://127.0.0.1:{port}{path}"


def _read(file: Path) -> list[str]:
    """Return the lines of a file, none before its first line is whole."""
    text = file.read_text() if file.exists() else ""
    return text.split("\n") if "\n" in text else []


@pytest.fixture
async def tab() -> AsyncIterator[Tab]:
    """A tab of a real browser; without one the test is skipped, or fails where nothing may be missing."""
    try:
        async with browser() as found:
            await found.size(1360, 860)
            yield found
    except ComponentMissing as missing:
        skip_or_fail(missing)
