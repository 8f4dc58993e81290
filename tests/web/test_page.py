"""The page in a real browser: what it shows, what it does with hostile names, and that it does not freeze."""

import itertools
import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from gputile.api.core import Node, NodeCondition, Pod, Taint
from gputile.api.well_known import MIG_PREFIX, RESERVATION_ANNOTATION, ConditionType
from gputile.cli.app import app
from gputile.core.devices.allocation import Allocation, Reservation, encode_reservation
from tests.fakes.agents import metrics_text, put_agent
from tests.fakes.corebuilders import bound, gpu_node, pod, share
from tests.localcluster.browser import Tab
from tests.localcluster.gputile import EXAMPLES
from tests.unit.tools.web.cluster_pages import served_in_cluster
from tests.unit.tools.web.pages import GIB, NODES, ServedPage, machine, put, served

# A browser stops loading whenever a network of the machine changes, as the tests of nodes have it.
pytestmark = [pytest.mark.anyio, pytest.mark.alone, pytest.mark.requirement("B7")]

DRAWN = "document.documentElement.dataset.drawn"
BLOCKS = """
JSON.stringify([...document.querySelectorAll("[data-gpu]")].map((tile) => [tile.dataset.of, Number(tile.dataset.gpu),
  [...tile.querySelectorAll("[data-pod]")].map((block) => [block.dataset.pod,
    Math.round(block.getBoundingClientRect().width / tile.querySelector(".bar").clientWidth * 1000) / 10])]))
"""
HOSTILE = (
    "<script>globalThis.stolen=1</script>",
    '"><img src=x onerror=globalThis.stolen=1>',
    "\u202egnp.exe",
    "\u05d0\u05d1\u05d2",
    "x" * 253,
    "{{constructor.constructor('globalThis.stolen=1')()}}",
    "javascript:globalThis.stolen=1",
    "__proto__",
    "constructor",
    "a\u0000b\ud7ffc",
)


async def look(tab: Tab, page: ServedPage) -> None:
    await tab.open(page.address)
    await tab.until(DRAWN)


async def blocks(tab: Tab) -> dict[tuple[str, int], dict[str, float]]:
    """Return the blocks of each tile that is in sight, with their part of it in percent."""
    found = json.loads(await tab.run(BLOCKS))
    return {(node, gpu): dict(pods) for node, gpu, pods in found}


def named(found: Pod, name: str, namespace: str | None = None) -> Pod:
    meta = msgspec.structs.replace(found.metadata, name=name, uid=f"uid-{name}", namespace=namespace or "default")
    return msgspec.structs.replace(found, metadata=meta)


async def test_blocks_are_as_large_as_what_pods_have_and_the_secret_leaves_the_address(tab: Tab) -> None:
    async with served(machine("a"), bound("p", "a", 0, 3), bound("q", "a", 0, 6), bound("r", "a", 1, 15)) as page:
        await look(tab, page)
        assert await blocks(tab) == {
            ("a", 0): {"default/p": pytest.approx(20, abs=1), "default/q": pytest.approx(40, abs=1)},
            ("a", 1): {"default/r": pytest.approx(100, abs=1)},
        }
        assert await tab.run("location.href") == page.address.partition("?")[0]
        assert await tab.run("document.cookie") == ""
        own = page.address.partition("?")[0]
        assert [each for each in tab.requests if not each.startswith((own, "about:"))] == []
        files = [each.removeprefix(own) for each in tab.requests if each.endswith(("/api/first", "/api/state", ".js"))]
        assert sorted(files) == sorted(set(files)), "what the browser was told to ask for early, it asks for once"
        assert "api/state" not in files, "it has all in what fills a screen"
        assert tab.errors == []


async def test_a_change_is_drawn_and_what_is_chosen_stays_chosen(tab: Tab) -> None:
    async with served(machine("a"), machine("b"), bound("p", "a")) as page:
        await look(tab, page)
        await tab.run("document.querySelector('[data-gpu]').focus()")
        await tab.key("ArrowRight")
        await tab.key("ArrowDown")
        chosen = "document.activeElement.dataset.of + document.activeElement.dataset.gpu"
        await tab.until(f"({chosen}) === 'b1'")
        put(page.cluster, bound("q", "b", 1, 5))
        await tab.until("document.querySelector('[data-pod=\"default/q\"]')?.dataset.pod")
        assert await tab.run(chosen) == "b1"
        page.cluster.delete("/api/v1/pods", "q")
        await tab.until("!document.querySelector('[data-pod=\"default/q\"]')")
        await tab.key("Enter")
        await tab.until("document.querySelector('#panel h2')?.textContent === 'b'")
        await tab.key("Escape")
        await tab.until("document.getElementById('panel').hidden")
        page.cluster.delete(NODES, "b")
        await tab.until("document.querySelectorAll('[data-gpu]').length === 2")
        assert tab.errors == []


async def test_a_node_of_mig_instances_shows_them_and_their_pods(tab: Tab) -> None:
    profile = MIG_PREFIX + "1g.5gb"
    split = gpu_node(
        "a", mode="default", sizes=[], allocatable={"pods": "110", profile: "4", MIG_PREFIX + "3g.20gb": "1"}
    )
    held, waits = pod("p", node="a", asks={profile: 3}), pod("w", asks={profile: 9})
    async with served(split, machine("b"), held, waits) as page:
        await look(tab, page)
        row = "document.querySelector('[data-row=\"a\"]')"
        told = await tab.run(f"{row}.textContent")
        assert "4 × MIG 1g.5gb" in told
        assert "MIG 1g.5gb: 1 of 4 free" in told
        assert "MIG 3g.20gb: 1 of 1 free" in told
        assert "unknown GPUs" not in told
        assert await tab.run(f"{row}.scrollHeight <= {row}.clientHeight"), "nothing stands over the next row"
        assert await tab.run("document.querySelector('[data-gpu][tabindex=\"0\"]').dataset.of") == "b"
        await tab.run(f"{row}.querySelector('[data-node]').click()")
        await tab.until("document.querySelector('#panel h2')?.textContent === 'a'")
        panel = await tab.run("document.getElementById('panel').textContent")
        assert "MIG 1g.5gb 3 of 4 instances booked" in panel
        assert "default/p 3 instances" in panel
        await tab.key("Escape")
        await tab.run(f"{row}.querySelector('[data-pod]').click()")
        await tab.until("document.querySelector('#panel .state')")
        await tab.key("Escape")
        await tab.key("2")
        assert f"asks for 9 of {profile}" in await tab.run("document.getElementById('view-pending').textContent")
        assert tab.errors == []


async def test_hostile_names_stay_text(tab: Tab) -> None:
    node = machine("a")
    bad = msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, name="<b>n</b>"))
    pods = [named(bound("p", "a", 0, 1), name, f"<i>{number}") for number, name in enumerate(HOSTILE)]
    waiting = [named(pod("p", mem=99), f"waits-{name}") for name in HOSTILE]
    async with served(node, bad, *pods, *waiting) as page:
        await look(tab, page)
        shown = json.loads(
            await tab.run(
                "JSON.stringify([...document.querySelectorAll('[data-of=\"a\"] .label')].map((x) => x.textContent))"
            )
        )
        assert sorted(shown) == sorted(HOSTILE)
        await tab.key("2")
        rows = json.loads(
            await tab.run(
                "JSON.stringify([...document.querySelectorAll('#view-pending .link')].map((x) => x.textContent))"
            )
        )
        assert sorted(rows) == sorted(f"default/waits-{name}" for name in HOSTILE)
        for number in range(len(HOSTILE)):
            await tab.run(f"document.querySelectorAll('#view-pending .link')[{number}].click()")
            await tab.until("document.querySelector('#panel .state, #panel .bad-box')")
            assert await tab.run("document.querySelector('#panel .bad-box')?.textContent") is None
            title = await tab.run("document.querySelector('#panel h2').textContent")
            assert title.removeprefix("default/waits-") in HOSTILE
            await tab.key("Escape")
        assert await tab.run("typeof globalThis.stolen") == "undefined"
        assert await tab.run("document.querySelectorAll('img, b b, script:not([src])').length") == 0
        assert tab.errors == []


async def test_search_filters_and_views(tab: Tab) -> None:
    async with served(
        machine("a"), machine("b"), bound("p", "a", 0, 3, "one"), bound("q", "b", 0, 6, "two"), pod("waits", mem=99)
    ) as page:
        await look(tab, page)
        await tab.key("/")
        await tab.page.keyboard.insert_text("one/p")
        assert set(await blocks(tab)) == {("a", 0), ("a", 1)}
        await tab.key("Escape")
        assert len(await blocks(tab)) == 4
        await tab.run(
            "(() => { const s = document.getElementById('namespace'); s.value = 'two'; "
            "s.dispatchEvent(new Event('change')); })()"
        )
        assert set(await blocks(tab)) == {("b", 0), ("b", 1)}
        await tab.run("document.activeElement.blur()")
        await tab.key("3")
        text = await tab.run("document.getElementById('view-capacity').textContent")
        assert "Largest share that fits15 GiBon b, GPU 1" in text
        await tab.key("2")
        await tab.run("document.querySelector('#namespace').value = ''")
        assert await tab.run("location.hash") == "#view=pending"
        for theme in ("dark", "light"):
            await tab.key("t")
            await tab.until(f"document.documentElement.dataset.theme === '{theme}'")
        assert tab.errors == []


def with_trouble() -> list[Node | Pod]:
    """A node with an unhealthy GPU, a taint and a silent agent, a pod of it, and a place kept for a pod of a gang."""
    sick = gpu_node("a", mode="cgpu", sizes=[15 * GIB] * 2, unhealthy=[1], unit_mib=GIB)
    silent = NodeCondition(type=ConditionType.AGENT_SILENT, status="True", reason="NoAgent", message="for 5 minutes")
    sick.status.conditions = (silent,)
    usual = Taint(key="nvidia.com/gpu", effect="NoSchedule")
    sick.spec.taints = (Taint(key="dedicated", value="x", effect="NoSchedule"), usual)
    gpu = share("GPU-a-0", 6 * GIB)
    ends_ns = time.time_ns() + 3600 * 10**9
    kept = Reservation("g/1", 1, 1, "a", ends_ns, Allocation((gpu,), {}, GIB, mode="cgpu"))
    new = bound("new", "a", 0, 3)
    new.metadata.creation_timestamp = datetime.now(UTC).isoformat()
    return [sick, new, pod("kept", mem=6, annotations={RESERVATION_ANNOTATION: encode_reservation(kept)})]


async def test_what_is_wrong_and_what_is_kept_is_told_without_colour(tab: Tab) -> None:
    async with served(*with_trouble(), machine("b", 8)) as page:
        await look(tab, page)
        badges = "[...document.querySelectorAll('.badge')].map((x) => x.textContent).join()"
        assert await tab.run(badges) == "agent silent,1 unhealthy,tainted,1 reserved"
        for width in (1360, 320):
            await tab.size(width, 860)
            await tab.until(f"document.documentElement.clientWidth === {width}")
            assert await tab.run("document.querySelector('.tile.sick em').textContent") == "✕ unhealthy"
            edges = (
                "['.tile.sick em', '.tile.sick'].map((x) => document.querySelector(x).getBoundingClientRect().right)"
            )
            assert await tab.run(f"((edges) => edges[0] <= edges[1])({edges})"), "nothing of it is cut off"
        kept = "document.querySelector('[data-pod=\"default/kept\"]')"
        assert "repeating-linear-gradient" in await tab.run(f"getComputedStyle({kept}).backgroundImage")
        assert await tab.run(f"{kept}.title") == "default/kept: 6 GiB, reserved"
        letters = "[...document.querySelectorAll('[data-pod] .letter')].map((x) => x.textContent).join('')"
        assert await tab.run(letters) == "AB", "workloads, because there is one namespace"
        for by, shown in (("namespace", "AA"), ("workload", "AB"), ("use", "CC"), ("age", "DA")):
            await tab.run(
                f"(() => {{ const s = document.getElementById('colour'); s.value = '{by}'; "
                "s.dispatchEvent(new Event('change')); })()"
            )
            assert await tab.run(letters) == shown, by
        assert tab.errors == []


async def test_the_keys_go_to_nodes_without_gpus_and_on_from_a_node_that_was_open(tab: Tab) -> None:
    split = gpu_node("b", mode="default", sizes=[], allocatable={"pods": "110", MIG_PREFIX + "1g.5gb": "4"})
    async with served(machine("a"), split, machine("c")) as page:
        await look(tab, page)
        at = "(({ of, gpu, node }) => of ? of + gpu : node)(document.activeElement.dataset)"
        for key, place in (
            ("ArrowDown", "a0"),
            ("ArrowRight", "a1"),
            ("ArrowDown", "b"),
            ("ArrowRight", "b"),
            ("ArrowDown", "c1"),
            ("ArrowLeft", "c0"),
            ("ArrowLeft", "c"),
            ("ArrowLeft", "c"),
            ("ArrowUp", "b"),
            ("ArrowUp", "a"),
            ("End", "c"),
            ("ArrowRight", "c0"),
            ("Home", "a0"),
        ):
            await tab.key(key)
            assert await tab.run(at) == place, key
        assert await tab.run("document.querySelectorAll('#rows [tabindex=\"0\"]').length") == 1
        await tab.key("ArrowDown")
        await tab.key("Enter")
        await tab.until("document.querySelector('#panel h2')?.textContent === 'b'")
        await tab.key("Escape")
        assert await tab.run(at) == "b"
        await tab.key("ArrowDown")
        assert await tab.run(at) == "c0"
        assert tab.errors == []


async def test_on_a_narrow_screen_nothing_is_beyond_its_edge(tab: Tab) -> None:
    width = 320
    async with served(machine("a", 8), bound("p", "a"), pod("waits", mem=99)) as page:
        await tab.size(width, 640)
        await look(tab, page)
        for key in "1234":
            await tab.key(key)
            assert await tab.run("document.scrollingElement.scrollWidth") == width, key
        await tab.key("4")
        await tab.run("document.querySelector('#view-what-if form').requestSubmit()")
        await tab.until("document.querySelector('#view-what-if table')")
        await tab.run("document.activeElement.blur()")
        for key, view in (("2", "pending"), ("4", "what-if")):
            await tab.key(key)
            cells = json.loads(
                await tab.run(
                    f"JSON.stringify([...document.querySelectorAll('#view-{view} tbody :is(th, td)')].map((cell) =>"
                    " [cell.getBoundingClientRect().right, cell.getBoundingClientRect().height]))"
                )
            )
            assert cells
            assert all(right <= width and height < 90 for right, height in cells), (view, cells)
            marked = await tab.run(f"getComputedStyle(document.querySelector('#view-{view} td'), '::before').content")
            assert marked == {"pending": "none", "what-if": '"Node: "'}[view], (
                "what says itself what it is is not told twice"
            )
        await tab.key("1")
        right = "Math.max(...[...document.querySelectorAll('.tile')].map((x) => x.getBoundingClientRect().right))"
        assert len(await blocks(tab)) == 8
        assert await tab.run(right) <= width
        await tab.run("document.querySelector('[data-pod]').click()")
        await tab.until("document.querySelector('#panel .state')")
        assert await tab.run("document.getElementById('panel').getBoundingClientRect().left") >= 0
        assert tab.errors == []


async def test_what_if_shows_where_pods_would_go(tab: Tab) -> None:
    async with served(machine("a"), bound("p", "a", 0, 13)) as page:
        await look(tab, page)
        await tab.key("4")
        await tab.run("document.querySelector('#view-what-if form').requestSubmit()")
        await tab.until("document.querySelector('#view-what-if table')")
        assert "2 of 2 pods" in await tab.run("document.querySelector('#view-what-if .answer').textContent")
        await tab.run("document.activeElement.blur()")
        await tab.key("1")
        assert await tab.run("document.querySelectorAll('.block.ghost').length") == 2
        await tab.key("4")
        await tab.run(
            "(() => { const form = document.querySelector('#view-what-if form'), text = form.querySelector('textarea');"
            "text.value = text.value.replace('\"4\"', '\"60\"'); form.querySelector('input').value = '1x8xH100:cgpu';"
            "form.requestSubmit(); })()"
        )
        await tab.until("document.querySelector('#view-what-if .answer').textContent.includes('new-1')")
        assert [each.method for each in page.cluster.requests if each.method != "GET"] == []
        assert tab.errors == []


async def test_what_is_used_is_drawn_in_the_blocks_and_said_of_the_pod(tab: Tab) -> None:
    async with served(machine("a"), bound("p", "a", 0, 4), bound("q", "a", 1, 4)) as page:
        put_agent(page.cluster, "a", metrics_text({"default/p": 3 << 30}))
        await look(tab, page)
        await tab.until("document.querySelector('[data-pod=\"default/p\"] .used')")
        part = "document.querySelector('[data-pod=\"default/p\"] .used').style.width"
        assert await tab.run(part) == "75%"
        assert await tab.run("document.querySelector('[data-pod=\"default/q\"] .used')") is None
        title = await tab.run("document.querySelector('[data-pod=\"default/p\"]').title")
        assert title == "default/p: 4 GiB, uses 3 GiB"
        await tab.run(
            "(() => { const s = document.getElementById('colour'); s.value = 'memory'; "
            "s.dispatchEvent(new Event('change')); })()"
        )
        letters = "[...document.querySelectorAll('[data-pod] .letter')].map((x) => x.textContent).join('')"
        assert await tab.run(letters) == "D?", "what is not measured is told apart from what uses nothing"
        legend = await tab.run("document.getElementById('legend').textContent")
        assert legend.startswith("Aunder 25 %Bunder 50 %Cunder 75 %D75 % and more?not measured")
        await tab.run("document.querySelector('[data-pod=\"default/p\"]').click()")
        await tab.until("document.getElementById('pod-use')?.textContent === 'uses 3 GiB'")
        await tab.key("Escape")
        await tab.run("document.querySelector('[data-node=\"a\"]').click()")
        await tab.until("document.querySelector('[data-use-of=\"default/p\"]')?.textContent === ', uses 3 GiB'")
        assert await tab.run("document.getElementById('usage-trouble').hidden")
        assert tab.errors == []


async def test_a_viewer_logs_in_and_sees_blocks_without_names(tab: Tab, tmp_path: Path) -> None:
    async with served_in_cluster(tmp_path) as page:
        await tab.open(page.base)
        await tab.until("document.getElementById('token')")
        assert await tab.run("location.pathname") == "/login"
        await tab.run(
            "document.getElementById('token').value = 'wrong'; document.querySelector('form').requestSubmit()"
        )
        await tab.until("document.querySelector('[role=alert]')?.textContent.startsWith('the cluster does not accept')")
        await tab.run("document.getElementById('token').value = 'token-team'")
        await tab.run("document.querySelector('form').requestSubmit()")
        await tab.until(DRAWN)
        found = [pod for gpu in (await blocks(tab)).values() for pod in gpu]
        assert sorted(found) == ["(hidden)/(hidden)", "mine/open"]
        assert not await tab.run("document.getElementById('partial').hidden")
        assert "secret" not in await tab.run("document.documentElement.outerHTML")
        put(page.cluster, bound("secret-new", "a", 1, 2, "theirs"), bound("open-new", "a", 0, 2, "mine"))
        await tab.until("document.querySelector('[data-pod=\"mine/open-new\"]')")
        assert "secret" not in await tab.run("document.documentElement.outerHTML")
        await tab.run("document.getElementById('logout').click()")
        await tab.until("location.pathname === '/login' && document.getElementById('token')")
        await tab.open(page.base)
        await tab.until("location.pathname === '/login'")
        assert [error for error in tab.errors if "401" not in error] == [], "a wrong token is answered with 401"


def many(count: int) -> list[Node | Pod]:
    """Nodes with eight GPUs, and three pods on each."""
    found: list[Node | Pod] = []
    for number in range(count):
        name = f"node-{number:05}"
        found.append(gpu_node(name, mode="cgpu", sizes=[80 * GIB] * 8, unit_mib=GIB))
        for gpu, part in itertools.product(range(8), range(3)):
            found.append(bound(f"w-{number}-{gpu}-{part}", name, gpu, 8, f"team-{number % 30}"))
    return found


async def test_a_simulation_as_one_file(tab: Tab, tmp_path: Path) -> None:
    words = ["simulate", "--cluster", str(EXAMPLES / "cluster.yaml"), "-f", str(EXAMPLES / "teams.yaml")]
    result = CliRunner().invoke(app, [*words, "-f", str(EXAMPLES / "too-large.yaml"), "-o", "html"])
    file = tmp_path / "page.html"
    file.write_text(result.stdout, encoding="utf-8")
    await tab.open(file.as_uri())
    await tab.until(DRAWN)
    assert sum(map(len, (await blocks(tab)).values())) > 5
    await tab.key("2")
    await tab.run("document.querySelector('#view-pending .link').click()")
    panel = "document.getElementById('panel').textContent"
    assert "fits none of" in await tab.run(panel)
    key = await tab.run("document.querySelector('[data-pod]').dataset.pod")
    on = await tab.run("document.querySelector('[data-pod]').closest('[data-row]').dataset.row")
    await tab.run(f"location.hash = 'pod=' + {json.dumps(key)}")
    await tab.until(f"{panel}.includes({json.dumps(f'It is on {on}')})")
    assert "GPU 0: " in await tab.run(panel)
    await tab.run("location.hash = 'pod=no/such'")
    await tab.until(f"{panel}.includes('This pod does not exist.')")
    await tab.run("location.hash = 'view=what-if'")
    await tab.until("!document.getElementById('view-tiles').hidden")
    assert await tab.run("document.getElementById('view-what-if').hidden")
    assert [each for each in tab.requests if not each.startswith(("file:", "about:"))] == []
    assert tab.errors == []


async def test_five_thousand_nodes_scroll(tab: Tab) -> None:
    """The elements in the document are those in sight, wherever one looks."""
    async with served(*many(5000)) as page:
        await look(tab, page)
        asked = [each.partition("/api/")[2] for each in tab.requests if each.endswith(("/api/first", "/api/state"))]
        assert asked == ["first", "state"]
        summary = await tab.run("document.getElementById('summary').textContent")
        assert "GPUs in use40000of 40000" in summary
        facts: Any = json.loads(
            await tab.run("""
          (async () => {
            const scroll = document.getElementById("scroll"), found = [];
            for (const part of [0, 0.25, 0.5, 0.9999, 1]) {
              scroll.scrollTop = part * scroll.scrollHeight;
              const { top, bottom } = scroll.getBoundingClientRect(), end = performance.now() + 30000;
              let rows, seen, last;
              do {
                await new Promise((drawn) => requestAnimationFrame(drawn));
                rows = [...document.querySelectorAll(".row")];
                seen = rows.filter((row) => row.getBoundingClientRect().bottom > top);
                last = rows.at(-1);
              } while (performance.now() < end && !(seen.length
                && (last.getBoundingClientRect().bottom >= bottom || last.dataset.row === "node-04999")));
              found.push([rows.length, seen[0].dataset.row, rows.at(-1).dataset.row]);
            }
            return JSON.stringify(found);
          })()
        """)
        )
        assert max(rows for rows, _, _ in facts) < 60
        assert facts[0][1] == "node-00000"
        assert "node-01240" < facts[1][1] < "node-01260"
        assert facts[-1][2] == "node-04999"
        await tab.run("document.querySelector('[data-gpu]').focus()")
        await tab.key("Home")
        await tab.key("End")
        await tab.until("document.activeElement.dataset.of === 'node-04999'")
        assert tab.errors == []
