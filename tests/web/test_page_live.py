"""The page while it is open: many windows, a way that is cut, and a pod that moves on while somebody reads of it."""

import asyncio
import contextlib
import json
import time

import pytest

from gputile.api.core import Pod
from gputile.api.well_known import RESERVATION_ANNOTATION
from gputile.core.devices.allocation import Allocation, Reservation, encode_reservation
from tests.fakes.corebuilders import bound, pod, share
from tests.localcluster.browser import Tab
from tests.unit.tools.web.pages import GIB, NODES, PODS, machine, put, served
from tests.web.test_page import DRAWN, look

# A browser stops loading whenever a network of the machine changes, as the tests of nodes have it.
pytestmark = [pytest.mark.anyio, pytest.mark.alone, pytest.mark.requirement("B7")]

SAID = "document.getElementById('trouble').hidden ? '' : document.getElementById('trouble').textContent"
LIVE = "document.getElementById('live').textContent === 'live'"
PANEL = "document.getElementById('panel').textContent"


class Way:
    """A forwarded port: connections to it lead to another port, until it is cut."""

    def __init__(self, to: int) -> None:
        self._to = to
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def open(self) -> None:
        """Lead on, at the same port as before."""
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        """End all connections, and take no more."""
        if self._server is not None:
            self._server.close()
            await asyncio.sleep(0)
        for each in self._writers:
            each.transport.abort()
        self._writers.clear()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward, back = await asyncio.open_connection("127.0.0.1", self._to)
        self._writers.update((writer, back))
        await asyncio.gather(self._carry(reader, back), self._carry(onward, writer))

    async def _carry(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                target.write(data)
                await target.drain()
        target.close()


async def another(tab: Tab, address: str) -> Tab:
    """Open an address in another tab of the same browser."""
    opened = Tab(await tab.page.context.new_page())
    await opened.open(address)
    await opened.until(DRAWN)
    return opened


async def put_out_of_sight(tab: Tab, *, hidden: bool) -> None:
    """Tell the page that its tab is out of sight, or in sight again: to Playwright every tab is in sight."""
    await tab.run(
        f"Object.defineProperty(document, 'hidden', {{ value: {json.dumps(hidden)}, configurable: true }});"
        " document.dispatchEvent(new Event('visibilitychange'))"
    )


async def test_nine_tabs_of_one_browser_are_all_drawn_and_that_in_sight_is_live(tab: Tab) -> None:
    async with served(machine("a"), bound("p", "a")) as page:
        await look(tab, page)
        before = tab
        for _ in range(8):
            await put_out_of_sight(before, hidden=True)
            before = await another(tab, page.address.partition("?")[0])
        put(page.cluster, bound("new", "a", 1, 2))
        await before.until("document.querySelector('[data-pod=\"default/new\"]')")
        assert not await tab.run(LIVE), "who is out of sight follows nothing"
        page.cluster.delete(PODS, "p")
        await put_out_of_sight(before, hidden=True)
        await put_out_of_sight(tab, hidden=False)
        await tab.until("document.querySelector('[data-pod=\"default/new\"]')")
        await tab.until("!document.querySelector('[data-pod=\"default/p\"]')")
        await tab.until(LIVE)
        assert await tab.run("fetch('/api/pod?namespace=default&name=new').then((answer) => answer.status)") == 200
        assert tab.errors == []


async def test_a_way_that_comes_back_does_not_hide_that_the_cluster_is_away(tab: Tab) -> None:
    async with served(machine("a"), bound("p", "a")) as page:
        way = Way(page.port)
        await way.open()
        await tab.open(page.address.replace(f":{page.port}", f":{way.port}"))
        await tab.until(LIVE)
        page.cluster.refused = dict.fromkeys((NODES, PODS), (403, "Forbidden"))
        page.cluster.break_connections()
        await tab.until(f"({SAID}).startsWith('The cluster has not answered since')")
        await way.cut()
        await tab.until(f"({SAID}).startsWith('gputile web does not answer')")
        await tab.run(
            "(() => { const live = document.getElementById('live'); globalThis.said = new Set();"
            " new MutationObserver(() => said.add(live.textContent)).observe(live, { childList: true }); })()"
        )
        await way.open()
        await tab.until(f"({SAID}).startsWith('The cluster has not answered since')")
        await tab.until("performance.getEntriesByType('resource').at(-1).name.includes('/api/') && said.size")
        assert json.loads(await tab.run("JSON.stringify([...said])")) == ["not live"]
        page.cluster.refused = {}
        await tab.until(LIVE)
        assert await tab.run(SAID) == ""
        await way.cut()


def reserved(name: str, gpu: int, until_ns: int) -> Pod:
    """Return a pod of a gang for which a GPU of node a is kept until then."""
    place = Allocation((share(f"GPU-a-{gpu}", 6 * GIB),), {}, GIB, mode="cgpu")
    return pod(
        name,
        mem=6,
        annotations={RESERVATION_ANNOTATION: encode_reservation(Reservation("g/1", 1, 1, "a", until_ns, place))},
    )


async def test_places_of_a_gang_come_hatched_and_go_when_they_end_or_their_pod_is_bound(tab: Tab) -> None:
    second = 10**9
    async with served(machine("a")) as page:
        await look(tab, page)
        now_ns = time.time_ns()
        ends, stays = reserved("ends", 0, now_ns + 5 * second), reserved("stays", 1, now_ns + 3600 * second)
        put(page.cluster, ends, stays)
        block = "document.querySelector('[data-pod=\"default/{}\"]')"
        for name in ("ends", "stays"):
            await tab.until(f"{block.format(name)}?.classList.contains('reserved')")
        assert "2 reserved" in await tab.run("document.querySelector('[data-row=\"a\"]').textContent")
        await tab.until(f"!{block.format('ends')}")
        assert "and 1 reserved" in await tab.run("document.getElementById('summary').textContent")
        put(page.cluster, bound("stays", "a", 1, 6))
        await tab.until(f"{block.format('stays')} && !{block.format('stays')}.classList.contains('reserved')")
        assert "reserved" not in await tab.run("document.querySelector('[data-row=\"a\"]').textContent")
        assert tab.errors == []


async def test_the_panel_of_a_pending_pod_follows_what_becomes_of_it(tab: Tab) -> None:
    async with served(machine("a"), machine("b"), bound("p", "a"), pod("waits", mem=99)) as page:
        await look(tab, page)
        await tab.key("2")
        await tab.run("document.querySelector('#view-pending .link').click()")
        await tab.until("document.querySelector('#panel .state.pending')")
        assert "fits none" in await tab.run(PANEL)
        put(page.cluster, bound("waits", "b", 0, 4))
        await tab.until("document.querySelector('#panel .state') && !document.querySelector('#panel .state.pending')")
        text = await tab.run(PANEL)
        assert "fits none" not in text
        assert "Nodeb" in text
        page.cluster.delete(PODS, "waits")
        await tab.until(f"({PANEL}).includes('this pod does not exist (any more)')")
        assert tab.errors == [error for error in tab.errors if "404" in error]


async def test_the_panel_asks_again_where_too_many_have_asked(tab: Tab) -> None:
    async with served(machine("a"), bound("p", "a"), pod("waits", mem=99)) as page:
        await look(tab, page)
        await tab.run("""
          (() => {
            const ask = globalThis.fetch;
            let left = 2;
            globalThis.fetch = (address, ...more) => `${address}`.startsWith("/api/pod?") && left-- > 0
              ? Promise.resolve(new Response("too many questions", { status: 503 })) : ask(address, ...more);
          })()
        """)
        await tab.key("2")
        await tab.run("document.querySelector('#view-pending .link').click()")
        await tab.until("document.querySelector('#panel .state.pending')")
        assert tab.errors == []
