"""What the watches deliver: lists piece by piece, and nodes that are touched so that refused pods are tried again."""

import asyncio
import contextlib
import copy
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputile.api.core import Node, Pod
from gputile.api.well_known import ALLOCATION_ANNOTATION, WAKE_ANNOTATION
from gputile.controlplane import event_loop
from gputile.controlplane.evictable_pods import EvictablePods
from gputile.controlplane.extender.informer import WATCH_LAG_SECONDS, Informer, PodRequeuer
from gputile.core.ledger.ledger import Ledger
from gputile.kube.objects import Applied, Deleted, Replaced, UnreadableObject
from tests.conftest import examples
from tests.fakes.apiserver import until
from tests.fakes.claimbuilders import claim, result
from tests.fakes.corebuilders import allocation_text, ledger_of, share
from tests.fakes.corebuilders import gpu_node as plain_node
from tests.fakes.coroutines import at_once as done
from tests.unit.controlplane.extender.builders import gpu_node, gpu_pod

pytestmark = pytest.mark.requirement("B1", "U4")


def held(number: int, gpu: int = 0) -> Pod:
    pod = gpu_pod(f"p{number}", 1)
    pod.spec.node_name = f"n{number % 3}"
    pod.metadata.annotations = {ALLOCATION_ANNOTATION: allocation_text(share(f"GPU-n{number % 3}-{gpu}", 1024))}
    return pod


def state(ledger: Ledger) -> object:
    rows = {node_info.name: ledger.node_arrays.used[row].tolist() for row, node_info in ledger.nodes()}
    return rows, {b.uid: b for b in ledger.bookings()}


NUMBERS = st.sets(st.integers(0, 30))


@pytest.mark.anyio
@settings(max_examples=examples(100), deadline=None)
@given(NUMBERS, NUMBERS, NUMBERS, st.sets(st.integers(0, 3)))
async def test_piece_by_piece_is_the_same_as_at_once(
    before: set[int], after: set[int], unreadable: set[int], nodes: set[int]
) -> None:
    def fed() -> tuple[Informer, Ledger]:
        ledger = ledger_of(*(gpu_node(f"n{i}") for i in range(3)))
        feed = Informer(ledger, lambda _: None)
        done(feed.listed_pods(Replaced([held(i) for i in before], [])))
        return feed, ledger

    listed_nodes: Replaced[Node] = Replaced([gpu_node(f"n{i}") for i in sorted(nodes)], [])
    unread = [UnreadableObject("default", f"p{i}", f"uid-p{i}", "nonsense") for i in unreadable - after]
    listed: Replaced[Pod] = Replaced([held(i, gpu=1) for i in sorted(after)], unread)
    (feed, slowly), (_, at_once) = fed(), fed()
    at_once.replace_nodes(copy.deepcopy(listed_nodes.objects))
    at_once.replace_pods(copy.deepcopy(listed.objects), frozenset(each.uid for each in unread))

    await feed.listed_nodes(listed_nodes)
    await feed.listed_pods(listed)
    assert state(slowly) == state(at_once)


@pytest.mark.anyio
async def test_others_get_their_turn_between_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_loop, "SLICE_SECONDS", 0.0)
    ledger = ledger_of(*(gpu_node(f"n{i}") for i in range(3)))
    bound_pods, turns = EvictablePods(lambda uid: ledger.booking(uid) is not None), 0
    feed = Informer(ledger, lambda _: None, [bound_pods])

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    await feed.listed_nodes(Replaced([gpu_node(f"n{i}") for i in range(1000)], []))
    at_nodes = turns
    await feed.listed_pods(Replaced([held(i) for i in range(5000)], []))
    at_pods = turns
    assert at_nodes >= 5
    assert at_pods - at_nodes >= 25
    assert sum(1 for _ in ledger.bookings()) == 5000
    await feed.listed_pods(Replaced([], []))
    task.cancel()
    assert turns - at_pods >= 125, "thousands may have gone while the watch was cut off"
    assert not list(ledger.bookings())
    assert not bound_pods.facts


def test_what_is_assumed_while_those_that_are_gone_are_released_stays() -> None:
    """The list is older than that: whether its pod is there the Binding's answer tells."""
    ledger = ledger_of(*(gpu_node(f"n{i}") for i in range(3)))
    pods = [held(i) for i in range(1000)]
    done(Informer(ledger, lambda _: None).listed_pods(Replaced(pods, [])))
    last = ledger.booking(pods[-1].metadata.uid)
    assert last is not None
    steps = ledger.release_gone(set())
    next(steps)
    ledger.remove_pod(last.uid)
    ledger.assume(msgspec.structs.replace(last, assumed_at=1.0))
    for _ in steps:
        pass
    assert [booking.uid for booking in ledger.bookings()] == [last.uid]


@pytest.mark.anyio
async def test_gpus_that_became_free_by_a_list_wake_whoever_was_refused() -> None:
    freed = list[str]()
    feed = Informer(ledger_of(gpu_node("n0")), freed.append)
    await feed.listed_pods(Replaced([held(0)], []))
    freed.clear()
    await feed.listed_pods(Replaced([], []))
    assert freed == ["n0"]
    await feed.listed_pods(Replaced([], []))
    assert freed == ["n0"], "nothing has changed"


def test_a_pod_that_has_other_gpus_of_its_node_wakes_whoever_was_refused() -> None:
    """The agent corrects an allocation, or tells one that nobody knew: kube-scheduler takes neither for free GPUs."""
    freed = list[str]()
    feed = Informer(ledger_of(gpu_node("n0")), freed.append)
    unknown = held(0)
    unknown.metadata.annotations = {}
    feed.pods(Applied(unknown))
    assert freed == []
    feed.pods(Applied(held(0)))
    assert freed == ["n0"], "while nobody knew, the node took no pods"
    feed.pods(Applied(held(0)))
    assert freed == ["n0"], "nothing has changed"
    feed.pods(Applied(held(0, gpu=1)))
    assert freed == ["n0", "n0"]


@pytest.mark.requirement("B8")
def test_a_list_of_claims_ends_what_is_not_in_it_unless_it_could_not_be_read() -> None:
    ledger = ledger_of(plain_node("n", mode="cgpu", claims=True))
    feed = Informer(ledger, lambda _: None)
    claims = [claim(name, result("n", 0, memory="1Gi"), memory="1Gi") for name in ("gone", "odd", "deleted", "kept")]
    for each in claims:
        feed.claims(Applied(each))
    feed.claims(Deleted(claims[2]))
    feed.claims(Replaced(claims[3:], [UnreadableObject("default", "odd", "uid-odd", "why")]))
    assert {booking.uid for booking in ledger.bookings()} == {"uid-odd", "uid-kept"}


def test_only_what_frees_gpus_wakes_whoever_was_refused() -> None:
    freed: list[str] = []
    feed = Informer(ledger_of(gpu_node("n0")), freed.append)
    feed.pods(Applied(gpu_pod("waiting")))
    feed.pods(Applied(held(0)))
    assert freed == []
    ended = held(0)
    ended.status.phase = "Succeeded"
    feed.pods(Applied(ended))
    assert freed == ["n0"]
    feed.pods(Applied(held(3)))
    feed.pods(Deleted(held(3)))
    feed.pods(Deleted(gpu_pod("waiting")))
    assert freed == ["n0", "n0"]


def test_a_changed_node_wakes_whoever_was_refused_and_a_touched_one_does_not() -> None:
    freed: list[str] = []
    feed = Informer(ledger_of(gpu_node("n0")), freed.append)
    touched = gpu_node("n0")
    touched.metadata.annotations = touched.metadata.annotations | {WAKE_ANNOTATION: "1"}
    feed.nodes(Applied(touched))
    assert freed == [], "else the touch would wake the touch"
    feed.nodes(Applied(gpu_node("n0", gpus=3)))
    assert freed == ["n0"]
    done(feed.listed_nodes(Replaced([gpu_node("n0", gpus=4)])))
    assert freed == ["n0", "n0"]


class _Patches:
    """Takes the place of a connection: notes what is patched."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []

    async def patch(self, path: str, body: bytes) -> bytes:
        self.seen.append((path, msgspec.json.decode(body)))
        return b"{}"


@pytest.mark.anyio
async def test_a_node_is_touched_only_soon_after_a_refusal() -> None:
    now, patches = [0.0], _Patches()
    wake = PodRequeuer(patches, lambda: now[0], pause=0.0)  # type: ignore[arg-type]
    task = asyncio.create_task(wake.run())
    wake.record_freed("a")
    await asyncio.sleep(0.01)
    assert patches.seen == []
    wake.record_refusal()
    wake.record_freed("a")
    await until(lambda: bool(patches.seen))
    assert [path for path, _ in patches.seen] == ["/api/v1/nodes/a"]
    now[0] += WATCH_LAG_SECONDS + 1
    wake.record_freed("a")
    await asyncio.sleep(0.01)
    assert len(patches.seen) == 1
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
