"""Which Event is sent next, and which is dropped: no namespace takes the turns or the places of others."""

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from gputile.api.core import ObjectReference
from gputile.kube.events import EventBuffer, EventKey

WHEN = datetime(2030, 1, 1, tzinfo=UTC)


def key(namespace: str, number: int) -> EventKey:
    return EventKey("Pod", namespace, f"p{number}", f"{namespace}-{number}", "Warning", "NoGPUFits", "none fits")


def put(buffer: EventBuffer, namespace: str, number: int) -> None:
    about = ObjectReference(kind="Pod", namespace=namespace, name=f"p{number}")
    buffer.put(key(namespace, number), about, WHEN, 0.0)


def taken(buffer: EventBuffer, count: int) -> list[tuple[str, str]]:
    found = [buffer.take()[0] for _ in range(count)]
    return [(each.namespace, each.name) for each in found]


def test_a_flood_of_one_namespace_neither_drops_nor_delays_what_others_say() -> None:
    buffer = EventBuffer(100)
    put(buffer, "other", 1)
    for number in range(1000):
        put(buffer, "flood", number)
    put(buffer, "other", 2)
    assert (len(buffer), buffer.dropped) == (100, 902)
    assert taken(buffer, 4) == [("other", "p1"), ("flood", "p902"), ("other", "p2"), ("flood", "p903")]
    assert taken(buffer, 1) == [("flood", "p904")], "what nobody else wants is its own"


def test_what_could_not_be_sent_is_next_of_its_namespace_after_those_of_others() -> None:
    """The API server may limit the Events of one namespace alone: what it refuses for now holds up no others."""
    buffer = EventBuffer(10)
    for namespace in ("a", "b"):
        for number in (1, 2):
            put(buffer, namespace, number)
    failed, occurrences = buffer.take()
    buffer.put_back(failed, occurrences)
    assert len(buffer) == 4
    assert taken(buffer, 4) == [("b", "p1"), ("a", "p1"), ("b", "p2"), ("a", "p2")]
    assert not len(buffer)


def test_what_is_said_again_while_it_is_sent_counts_once() -> None:
    buffer = EventBuffer(10)
    put(buffer, "a", 1)
    sending, occurrences = buffer.take()
    put(buffer, "a", 1)
    buffer.put_back(sending, occurrences)
    assert len(buffer) == 1
    again, both = buffer.take()
    assert (again, both.count) == (sending, 2)
    buffer.sent(again, both)
    put(buffer, "a", 1)
    assert buffer.take()[1].count == 3


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9)) | st.none()), st.integers(1, 6))
def test_there_are_never_more_than_may_wait(steps: list[tuple[str, int] | None], capacity: int) -> None:
    """None takes one; each other step puts one."""
    buffer = EventBuffer(capacity)
    for step in steps:
        if step is not None:
            put(buffer, *step)
        elif len(buffer):
            before = len(buffer)
            buffer.take()
            assert len(buffer) == before - 1
        assert len(buffer) <= capacity
    left = taken(buffer, len(buffer))
    assert len(set(left)) == len(left)
    assert not len(buffer)
