"""What the server answers: state, changes, pods, manifests; and that bad requests and slow readers hurt nobody."""

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import pytest

from gputile.api.core import NodeCondition
from gputile.api.well_known import GPU_MEMORY
from gputile.tools.web import stream
from gputile.tools.web.app import LARGEST_MANIFEST
from gputile.tools.web.guard import COOKIE
from tests.corebuilders import pod
from tests.fakes.agents import metrics_text, put_agent
from tests.unit.tools.web.pages import NODES, PODS, ServedPage, bound, machine, put, served

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("B7")]

HANG_S = 60.0
DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: new}
spec:
  replicas: 3
  selector: {matchLabels: {app: new}}
  template:
    metadata: {labels: {app: new}}
    spec: {containers: [{name: c, image: i, resources: {limits: {aliyun.com/gpu-mem: 10}}}]}
"""


async def state_of(page: ServedPage) -> dict[str, Any]:
    found: dict[str, Any] = (await page.client.get("/api/state")).json()
    return found


async def until_state(page: ServedPage, wanted: Any) -> dict[str, Any]:
    async with asyncio.timeout(HANG_S):
        while True:
            state = await state_of(page)
            if wanted(state):
                return state
            await asyncio.sleep(0.02)


async def watched(page: ServedPage) -> None:
    """Return when nodes and pods are watched."""
    await until_state(page, lambda _: page.cluster.count("watch") >= 2)


async def changes(page: ServedPage, state: dict[str, Any], kind: str, after: int | None = None) -> dict[str, Any]:
    """Return the first event of a kind after a state."""
    query = {"epoch": state["epoch"], "after": str(state["revision"] if after is None else after)}
    async with asyncio.timeout(HANG_S), page.client.stream("GET", "/api/changes", params=query) as answer:
        assert answer.headers["content-type"] == "text/event-stream"
        found = ""
        async for line in answer.aiter_lines():
            name, _, value = line.partition(": ")
            if name == "event":
                found = value
            elif name == "data" and found == kind:
                event: dict[str, Any] = json.loads(value)
                return event
    raise AssertionError(f"the stream ended without {kind}")


async def test_the_page_has_what_it_needs_and_nothing_from_elsewhere() -> None:
    async with served(machine("a")) as page:
        text = (await page.client.get("/")).text
        assert '<script type="module" src="/static/main.js">' in text
        for path, kind in (("main.js", "text/javascript"), ("page.css", "text/css"), ("icon.svg", "image/svg+xml")):
            answer = await page.client.get(f"/static/{path}")
            assert answer.headers["content-type"].startswith(kind)
            assert "http://" not in answer.text.replace("http://www.w3.org/2000/svg", "")
        assert (await page.client.get("/static/../app.py")).status_code == 404
        assert (await page.client.get("/api/nothing")).status_code == 404


async def test_the_state_and_what_changes() -> None:
    async with served(machine("a"), bound("p", "a"), pod("waits", mem=99)) as page:
        state = await state_of(page)
        assert [node["name"] for node in state["nodes"]] == ["a"]
        assert state["nodes"][0]["pods"][0]["shares"] == [[0, 4096, 0]]
        assert [each["name"] for each in state["pending"]] == ["waits"]
        put(page.cluster, bound("q", "a", gpu=1))
        change = await changes(page, state, "change")
        assert [each["name"] for each in change["nodes"]["a"]["pods"]] == ["p", "q"]


async def test_a_browser_with_another_servers_state_or_none_loads_the_page_anew() -> None:
    async with served(machine("a")) as page:
        state = await state_of(page)
        assert await changes(page, {**state, "epoch": "another"}, "reload") == {}
        assert await changes(page, state, "reload", after=10_000) == {}
        for after in ("", "x", "-1", "9" * 40, "²"):
            async with page.client.stream("GET", "/api/changes", params={"epoch": state["epoch"], "after": after}) as a:
                assert "reload" in (await anext(a.aiter_lines()))


async def test_a_cluster_that_goes_away_and_comes_back() -> None:
    async with served(machine("a")) as page:
        await watched(page)
        page.cluster.refused = dict.fromkeys((NODES, PODS), (503, "ServiceUnavailable"))
        page.cluster.break_connections()
        state = await until_state(page, lambda state: state["status"]["trouble"])
        assert [node["name"] for node in state["nodes"]] == ["a"]
        put(page.cluster, machine("b"))
        page.cluster.refused = {}
        page.cluster.compact()  # what the watches would go on from is forgotten
        state = await until_state(page, lambda state: len(state["nodes"]) == 2 and not state["status"]["trouble"])
        put(page.cluster, bound("q", "b"))
        await until_state(page, lambda state: any(node.get("pods") for node in state["nodes"]))


async def test_rights_that_are_taken_away_are_said() -> None:
    async with served(machine("a")) as page:
        await watched(page)
        before = await state_of(page)
        page.cluster.refused = dict.fromkeys((NODES, PODS), (403, "Forbidden"))
        page.cluster.break_connections()
        state = await until_state(page, lambda state: "403 Forbidden" in state["status"]["trouble"])
        assert [node["name"] for node in state["nodes"]] == ["a"]
        status = await changes(page, before, "status")
        assert status["trouble"]
        assert status["since"] <= state["status"]["since"]


async def test_a_pods_page_says_what_explain_says() -> None:
    async with served(machine("a"), bound("p", "a"), pod("waits", mem=99)) as page:
        page.cluster.store["/api/v1/namespaces/default/events"] = {
            "e": {
                "metadata": {"name": "e"},
                "involvedObject": {"kind": "Pod", "name": "waits"},
                "type": "Warning",
                "reason": "FailedScheduling",
                "message": "0/1 nodes are available",
                "lastTimestamp": "2026-01-01T00:00:00Z",
            }
        }
        placed = (await page.client.get("/api/pod", params={"namespace": "default", "name": "p"})).json()
        assert placed["explanation"]["text"] == "Pod default/p is on node a: GPU 0 (GPU-a-0), 4096 MiB."
        found = (await page.client.get("/api/pod", params={"namespace": "default", "name": "waits"})).json()
        assert found["explanation"]["state"] == "Pending"
        assert "its largest GPU has 15 units" in found["explanation"]["nodes"][0]["gpu"]
        assert found["explanation"]["changes"]
        assert [each["reason"] for each in found["events"]] == ["FailedScheduling"]
        page.cluster.refused["/api/v1/namespaces/default/events"] = (403, "Forbidden")
        found = (await page.client.get("/api/pod", params={"namespace": "default", "name": "p"})).json()
        assert found["eventsUnknown"].startswith("you may not list the Events of this namespace")
        for query in ({}, {"namespace": "default", "name": "nobody"}, {"namespace": "../..", "name": "p"}):
            assert (await page.client.get("/api/pod", params=query)).status_code == 404


async def test_what_is_used_of_the_nodes_in_sight_and_by_a_pod() -> None:
    async with served(machine("a"), machine("b"), bound("p", "a"), pod("waits", mem=99)) as page:
        put_agent(page.cluster, "a", metrics_text({"default/p": 2 << 30}))
        asked = {"node": ["a", "nowhere", "../.."]}
        async with asyncio.timeout(HANG_S):
            while True:
                found = (await page.client.get("/api/usage", params=asked)).json()
                if found:
                    break
                await asyncio.sleep(0.02)
        assert found == {"nodes": {"a": {"pods": {"default/p": [2048, None]}, "gpus": {"0": 2049}}}}
        query = {"namespace": "default", "name": "p"}
        found = (await page.client.get("/api/pod-usage", params=query)).json()
        assert found["usage"] == [2048, None]
        assert [sample[1:] for sample in found["samples"]] == [[2048, None]]
        assert (await page.client.get("/api/pod-usage", params={**query, "name": "waits"})).json() == {}
        assert (await page.client.get("/api/pod-usage", params={**query, "name": "nobody"})).status_code == 404


async def test_what_if_places_pods_and_sends_nothing() -> None:
    async with served(machine("a"), bound("p", "a")) as page:
        before = len([each for each in page.cluster.requests if each.method != "GET"])
        found = (await page.client.post("/api/what-if", content=DEPLOYMENT)).json()
        assert sorted(each.get("node", "") for each in found["pods"]) == ["", "a", "a"]
        assert [each["shares"] for each in found["pods"] if each.get("node")] == [[[0, 10240, 0]], [[1, 10240, 0]]]
        assert before == len([each for each in page.cluster.requests if each.method != "GET"]) == 0


@pytest.mark.parametrize(
    ("manifest", "said"),
    [
        (b"", "holds no object"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (b"a: [", "standard input"),
        (b"kind: Unheard\napiVersion: v9\nmetadata: {name: x}", "no matches for kind"),
        (b"a: &a [x]\nb: [" + b"*a," * 1000 + b"]", "standard input"),
        (b"[" * 100_000, "standard input"),
        (b"kind: Pod\napiVersion: v1\nmetadata: {name: '<script>'}\nspec: {containers: []}", "Pod/<script>"),
    ],
)
async def test_a_manifest_that_cannot_be_used_is_an_answer(manifest: bytes, said: str) -> None:
    async with served(machine("a")) as page:
        answer = await page.client.post("/api/what-if", content=manifest)
        assert answer.status_code == 200
        assert said in answer.json()["error"]


async def test_a_manifest_that_is_too_large_is_refused() -> None:
    async with served(machine("a")) as page:
        answer = await page.client.post("/api/what-if", content=b"#" * (LARGEST_MANIFEST + 1))
        assert answer.status_code == 413
        assert (await page.client.get("/api/state")).status_code == 200


async def test_fifty_viewers_see_a_change_and_one_that_stops_reading_holds_up_nobody() -> None:
    async with served(machine("a")) as page:
        state = await state_of(page)
        stalled = socket.create_connection(("127.0.0.1", page.port))
        cookie = f"{COOKIE}={page.client.cookies[COOKIE]}"
        target = f"/api/changes?epoch={state['epoch']}&after={state['revision']}"
        stalled.sendall(f"GET {target} HTTP/1.1\r\nHost: localhost\r\nCookie: {cookie}\r\n\r\n".encode())
        try:
            watching = [asyncio.create_task(changes(page, state, "change")) for _ in range(50)]
            await asyncio.sleep(0.5)
            put(page.cluster, pod("new", mem=3, asks={GPU_MEMORY: 3}))
            async with asyncio.timeout(HANG_S):
                found = await asyncio.gather(*watching)
            assert all(each["pending"]["default/new"]["name"] == "new" for each in found)
        finally:
            stalled.close()


def connection_state(server_port: int, client_port: int) -> str:
    """Return the state of the server's end of a connection as Linux tells it: "01" while it is established."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, state, *_ = line.split()
        if (local[-5:], remote[-5:]) == (f":{server_port:04X}", f":{client_port:04X}"):
            return state
    return "gone"


async def test_a_viewer_that_reads_no_further_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it was to read is more than sockets keep, so the server waits for it: not for ever."""
    monkeypatch.setattr(stream, "STALLED_S", 0.5)
    machines = [machine(f"node-{number}") for number in range(8)]
    for each in machines:
        long = NodeCondition(type="Ready", status="False", reason="Long", message="x" * (1 << 20))
        each.status.conditions = (long,)
    async with served(*machines) as page:
        with socket.socket() as stalled:
            stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stalled.connect(("127.0.0.1", page.port))
            cookie = f"{COOKIE}={page.client.cookies[COOKIE]}"
            stalled.sendall(f"GET /api/state HTTP/1.1\r\nHost: localhost\r\nCookie: {cookie}\r\n\r\n".encode())
            client_port = stalled.getsockname()[1]
            for ends in (False, True):  # it is there first, and then no more
                async with asyncio.timeout(HANG_S):
                    while True:
                        if (connection_state(page.port, client_port) != "01") is ends:
                            break
                        await asyncio.sleep(0.05)
        assert len((await page.client.get("/api/state")).content) > 8 << 20, "who reads gets all of it"
