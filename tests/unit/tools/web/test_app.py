"""What the server answers: state, changes, pods, manifests; and that bad requests and slow readers hurt nobody."""

import asyncio
import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import NodeCondition
from gputile.kube.client import Connection
from gputile.kube.config import Access
from gputile.kube.credentials import FixedCredentials
from gputile.tools.web import feed as page_feed
from gputile.tools.web.app import FIRST_NODES, LARGEST_MANIFEST
from gputile.tools.web.feed import Feed
from gputile.tools.web.questions import ClusterSnapshot, QuestionQueue, TooManyQuestions
from gputile.tools.web.state import PageState
from tests.fakes.agents import metrics_text, put_agent
from tests.fakes.corebuilders import bound, gpu_node, pod
from tests.unit.tools.web.pages import CONFIGURATION, PODS, ServedPage, machine, put, served

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("B7")]


HANG_S = 60.0


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


async def test_what_fills_a_screen_comes_before_thousands_of_nodes() -> None:
    names = [f"node-{number}" for number in range(FIRST_NODES + 20)]
    async with served(*map(machine, reversed(names)), pod("waits", mem=99)) as page:
        first = (await page.client.get("/api/first")).json()
        assert [node["name"] for node in first["nodes"]] == names[:FIRST_NODES], "as people count, not by the letter"
        assert (first["more"], first["pending"]) == (True, [])
        state = await state_of(page)
        assert (state["more"], len(state["nodes"]), len(state["pending"])) == (False, len(names), 1)
        assert (state["epoch"], state["revision"]) == (first["epoch"], first["revision"])


async def test_a_browser_with_another_servers_state_or_none_loads_the_page_anew() -> None:
    async with served(machine("a")) as page:
        state = await state_of(page)
        assert await changes(page, {**state, "epoch": "another"}, "reload") == {}
        assert await changes(page, state, "reload", after=10_000) == {}
        for after in ("", "x", "-1", "9" * 40, "²"):
            async with page.client.stream("GET", "/api/changes", params={"epoch": state["epoch"], "after": after}) as a:
                assert "reload" in (await anext(a.aiter_lines()))


async def test_a_cluster_that_keeps_its_connections_and_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_feed, "CHECK_EVERY_S", 0.01)
    monkeypatch.setattr(page_feed, "CHECK_TIMEOUT_S", 0.1)
    async with served(machine("a")) as page:
        await watched(page)
        watches = page.cluster.count("watch")
        page.cluster.answering.clear()
        state = await until_state(page, lambda state: "no complete answer" in state["status"]["trouble"])
        assert state["status"]["since"]
        page.cluster.answering.set()
        await until_state(page, lambda state: not state["status"]["trouble"])
        assert page.cluster.count("watch") == watches


async def test_a_pods_page_says_what_explain_says() -> None:
    async with served(machine("a"), bound("p", "a"), pod("waits", mem=99)) as page:
        uid = page.cluster.store[PODS]["waits"]["metadata"]["uid"]
        page.cluster.store["/api/v1/namespaces/default/events"] = {
            reason: {
                "metadata": {"name": reason},
                "involvedObject": {"kind": "Pod", "name": "waits", "uid": about},
                "type": "Warning",
                "reason": reason,
                "message": "0/1 nodes are available",
                "lastTimestamp": "2026-01-01T00:00:00Z",
            }
            for reason, about in (("FailedScheduling", uid), ("OfItsPredecessor", "another"))
        }
        placed = (await page.client.get("/api/pod", params={"namespace": "default", "name": "p"})).json()
        assert placed["explanation"]["text"] == (
            "Pod default/p is on node a: GPU 0 (GPU-a-0), 4 GiB. No other node would take the pod now."
        )
        found = (await page.client.get("/api/pod", params={"namespace": "default", "name": "waits"})).json()
        assert found["explanation"]["state"] == "Pending"
        assert "its largest GPU has 15 GiB" in found["explanation"]["nodes"][0]["gpu"]
        assert found["explanation"]["changes"]
        assert [each["reason"] for each in found["events"]] == ["FailedScheduling"]
        page.cluster.refused["/api/v1/namespaces/default/events"] = (403, "Forbidden")
        found = (await page.client.get("/api/pod", params={"namespace": "default", "name": "p"})).json()
        assert found["eventsUnknown"].startswith("you may not list the Events of this namespace")
        for query in ({}, {"namespace": "default", "name": "nobody"}, {"namespace": "../..", "name": "p"}):
            assert (await page.client.get("/api/pod", params=query)).status_code == 404


async def test_a_question_that_needs_what_the_api_server_does_not_give_is_told_so() -> None:
    async with served(machine("a"), pod("waits", mem=99), beside="/api/v1/namespaces") as page:
        page.cluster.refused["/api/v1/namespaces"] = (500, "InternalError")
        asked = await page.client.get("/api/pod", params={"namespace": "default", "name": "waits"})
        pasted = await page.client.post("/api/what-if", content=b"kind: Pod")
        for answer in (asked, pasted):
            assert answer.status_code == 503
            assert answer.text.startswith("the cluster cannot be read: GET /api/v1/namespaces: 500 InternalError")


async def test_what_if_may_add_nodes() -> None:
    spec = "{containers: [{name: c, image: i, resources: {limits: {aliyun.com/gpu-mem: 60}}}]}"
    manifest = f"{{apiVersion: v1, kind: Pod, metadata: {{name: p}}, spec: {spec}}}".encode()
    async with served(machine("a")) as page:
        answers = [
            (await page.client.post("/api/what-if", content=manifest, params={"node": nodes})).json()
            for nodes in ([], ["2x8xT4", "1x2xH100:cgpu"], ["1x2xH100:cgu"])
        ]
    alone, added, wrong = answers
    assert "node" not in alone["pods"][0]
    assert added["pods"][0]["node"] == "new-2-1"
    assert wrong["error"].startswith("added nodes 1x2xH100:cgu: nodes[0].mode: Unsupported value")


async def test_a_viewer_who_asks_very_much_leaves_room_for_others() -> None:
    async def snapshot() -> ClusterSnapshot:
        return ClusterSnapshot((), (), CONFIGURATION)

    answered = threading.Event()
    questions = QuestionQueue(snapshot, 4, 2)

    def wait(_: ClusterSnapshot) -> bool:
        return answered.wait(HANG_S)

    asked = [asyncio.ensure_future(questions.ask(wait, viewer)) for viewer in ("one", "one", "another", "another")]
    await asyncio.sleep(0)
    with pytest.raises(TooManyQuestions):
        await questions.ask(wait, "third")
    answered.set()
    assert all(await asyncio.gather(*asked))
    answered.clear()
    asked = [asyncio.ensure_future(questions.ask(wait, "one")) for _ in range(3)]
    another = asyncio.ensure_future(questions.ask(wait, "another"))
    await asyncio.sleep(0)
    answered.set()
    found = await asyncio.gather(*asked, another, return_exceptions=True)
    assert [isinstance(each, TooManyQuestions) for each in found] == [False, False, True, False]


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
        assert found == {"nodes": {"a": {"pods": {"default/p": [2048, None, {"0": 2048}]}, "gpus": {"0": 2049}}}}
        query = {"namespace": "default", "name": "p"}
        found = (await page.client.get("/api/pod-usage", params=query)).json()
        assert found["usage"] == [2048, None, {"0": 2048}]
        assert [sample[1:] for sample in found["samples"]] == [[2048, None]]
        assert (await page.client.get("/api/pod-usage", params={**query, "name": "waits"})).json() == {}
        assert (await page.client.get("/api/pod-usage", params={**query, "name": "nobody"})).status_code == 404


async def test_a_manifest_that_is_too_large_is_refused() -> None:
    async with served(machine("a")) as page:
        answer = await page.client.post("/api/what-if", content=b"#" * (LARGEST_MANIFEST + 1))
        assert answer.status_code == 413
        assert (await page.client.get("/api/state")).status_code == 200


def connection_state(server_port: int, client_port: int) -> str:
    """Return the state of the server's end of a connection as Linux tells it: "01" while it is established."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, state, *_ = line.split()
        if (local[-5:], remote[-5:]) == (f":{server_port:04X}", f":{client_port:04X}"):
            return state
    return "gone"


async def test_a_viewer_that_reads_no_further_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it was to read is more than sockets keep, so the server waits for it: not for ever."""
    monkeypatch.setattr(page_feed, "STALLED_S", 0.5)
    machines = [machine(f"node-{number}") for number in range(8)]
    for each in machines:
        long = NodeCondition(type="Ready", status="False", reason="Long", message="x" * (1 << 20))
        each.status.conditions = (long,)
    async with served(*machines) as page:
        with socket.socket() as stalled:
            stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stalled.connect(("127.0.0.1", page.port))
            cookie = "; ".join(f"{name}={value}" for name, value in page.client.cookies.items())
            stalled.sendall(
                f"GET /api/state HTTP/1.1\r\nHost: localhost:{page.port}\r\nCookie: {cookie}\r\n\r\n".encode()
            )
            client_port = stalled.getsockname()[1]
            for ends in (False, True):  # it is there first, and then no more
                async with asyncio.timeout(HANG_S):
                    while True:
                        if (connection_state(page.port, client_port) != "01") is ends:
                            break
                        await asyncio.sleep(0.05)
        assert len((await page.client.get("/api/state")).content) > 8 << 20, "who reads gets all of it"


GIB = 1024
MANY = 260


async def test_many_changes_do_not_hold_the_loop_at_once() -> None:
    state = PageState(Configuration())
    state.nodes_replaced([gpu_node(f"n{i}", mode="cgpu", sizes=[15 * GIB], unit_mib=GIB) for i in range(MANY)])
    state.pods_replaced([pod(f"p{i}", mem=99) for i in range(MANY)])
    feed, turns, agreed = Feed(Connection(Access("http://127.0.0.1:1", FixedCredentials(None, None))), state), 0, 0

    async def others() -> None:
        nonlocal turns, agreed
        while True:
            turns += 1
            told = [json.loads(each.encoded.partition(b"data: ")[2]) for each in feed.log.since(0) or ()]
            agreed += state.page.nodes.keys() == {name for each in told for name in each["nodes"]}
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    await feed.publish()
    beside.cancel()
    assert turns >= 5
    assert agreed == turns, "who reads the page between two changes has what the log says by then"
    assert len(state.page.nodes) == len(state.page.pending) == MANY
    assert not state.next_difference()
