"""One extender follows another when the configuration changes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from gputile.api.config.v1alpha1 import Configuration
from gputile.controlplane.config_reload import ConfigReloader
from tests.fakes.apiserver import until
from tests.fakes.http import client_of

pytestmark = pytest.mark.requirement("U9", "U10")

SMALL, LARGE = Configuration(gpu_memory_unit="128MiB"), Configuration(gpu_memory_unit="1GiB")


class Incumbent:
    """Answers with its unit, slowly where the test says so, and writes down what happens."""

    def __init__(self, configuration: Configuration, story: list[str], answering: asyncio.Event) -> None:
        self.unit = configuration.gpu_memory_unit
        self.story = story
        self.answering = answering

    async def app(self, _: web.BaseRequest) -> web.StreamResponse:
        self.story.append(f"{self.unit} asked")
        await self.answering.wait()
        self.story.append(f"{self.unit} answers")
        return web.Response(text=self.unit)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        self.story.append(f"{self.unit} begins")
        yield
        self.story.append(f"{self.unit} ends")


@pytest.mark.anyio
async def test_the_next_begins_when_the_last_answer_of_the_one_before_is_given() -> None:
    """No Binding is under way while the next lists the cluster: it would not see it."""
    story = list[str]()

    answering = asyncio.Event()
    reloader = ConfigReloader(lambda each: Incumbent(each, story, answering), LARGE)
    work = asyncio.create_task(reloader.run())
    async with client_of(reloader) as client:
        await until(lambda: story == ["1GiB begins"])
        slow = asyncio.create_task(client.get("/"))
        await until(lambda: "1GiB asked" in story)
        reloader.configure(SMALL)
        await asyncio.sleep(0)
        refused = await client.get("/")
        assert (refused.status_code, refused.text) == (503, "the configuration is being reloaded")
        assert (await client.get("/readyz")).status_code == 503
        assert (await client.get("/healthz")).status_code == 200, "it lives, and is not to be started anew"
        answering.set()
        assert (await slow).text == "1GiB"
        await until(lambda: story[-1] == "128MiB begins")
        assert (await client.get("/")).text == "128MiB"
        reloader.stop()
        await work
    assert story == [
        *("1GiB begins", "1GiB asked", "1GiB answers", "1GiB ends"),
        *("128MiB begins", "128MiB asked", "128MiB answers", "128MiB ends"),
    ]


@pytest.mark.anyio
async def test_what_changes_while_one_follows_another_is_not_lost() -> None:
    story = list[str]()

    reloader = ConfigReloader(lambda each: Incumbent(each, story, asyncio.Event()), LARGE)
    work = asyncio.create_task(reloader.run())
    await until(lambda: story == ["1GiB begins"])
    for configuration in (SMALL, Configuration(gpu_memory_unit="256MiB")):
        reloader.configure(configuration)
    await until(lambda: story[-1] == "256MiB begins")
    reloader.stop()
    await work
