"""The arbiter's process on real sockets: what it tells whom, and what it makes of bytes that are no messages."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gputile.node.arbiter.accounts import Share
from gputile.node.arbiter.messages import (
    SIZE,
    VERSION,
    Assignment,
    Message,
    MessageKind,
    decode,
    uuid_fields,
)
from gputile.node.arbiter.server import MOST_CONNECTIONS
from tests.conftest import HANGS_S, examples
from tests.integration.arbiter.process import ArbiterProcess

GPU = "GPU-00000000-0000-5117-0000-000000000001"
OTHER = "GPU-00000000-0000-5117-0000-000000000002"
A, B = uuid_fields(GPU)


PEERS: list["Peer"] = []


class Peer:
    """A client that says exactly what it is told to."""

    def __init__(self, path: Path, *, greet: bool = True) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        PEERS.append(self)
        self.socket.settimeout(HANGS_S)
        self.socket.connect(str(path))
        if greet:
            self.say(Message(MessageKind.HELLO, a=1, b=1))
            assert self.hear().kind is MessageKind.WELCOME
            self.say(Message(MessageKind.GPU, gpu=0, a=A, b=B))

    def say(self, *messages: Message) -> None:
        self.socket.sendall(b"".join(message.encode() for message in messages))

    def hear(self) -> Message:
        return decode(self.socket.recv(SIZE, socket.MSG_WAITALL))

    def closed(self) -> bool:
        try:
            while self.socket.recv(4096):
                continue
        except ConnectionResetError:
            pass
        return True


@pytest.fixture(autouse=True)
def hang_up() -> Iterator[None]:
    yield
    while PEERS:
        PEERS.pop().socket.close()


@pytest.fixture
def arbiter(tmp_path: Path) -> Iterator[ArbiterProcess]:
    with ArbiterProcess(tmp_path) as process:
        yield process


def serve(arbiter: ArbiterProcess, *names: str, gpu: str = GPU) -> list[Path]:
    return arbiter.assign({name: {gpu: Share()} for name in names})


def test_killed_and_silent_holders(arbiter: ArbiterProcess) -> None:
    one, two, three = (Peer(path) for path in serve(arbiter, "one", "two", "three"))
    one.say(Message(MessageKind.WANT))
    one.hear()
    two.say(Message(MessageKind.WANT))
    one.hear()
    one.socket.close()
    turn = two.hear()
    assert (turn.kind, turn.a) == (MessageKind.TURN, 30_000_000), "one was there a moment ago"
    three.say(Message(MessageKind.WANT))
    assert three.hear().kind is MessageKind.TURN, "two says nothing"


def test_versions(arbiter: ArbiterProcess) -> None:
    """A newer library that still speaks version 1 is welcome; one that does not is told so."""
    (path,) = serve(arbiter, "one")
    newer, alien = Peer(path, greet=False), Peer(path, greet=False)
    newer.say(Message(MessageKind.HELLO, a=1, b=VERSION + 6))
    assert newer.hear().a == VERSION
    alien.say(Message(MessageKind.HELLO, a=VERSION + 1, b=VERSION + 6))
    assert alien.hear().a == 0
    assert alien.closed()


def test_a_gpu_of_somebody_else(arbiter: ArbiterProcess) -> None:
    (path,) = serve(arbiter, "one")
    peer = Peer(path)
    a, b = uuid_fields(OTHER)
    peer.say(Message(MessageKind.GPU, gpu=1, a=a, b=b))
    assert peer.closed()


def test_too_many_connections(arbiter: ArbiterProcess) -> None:
    (path,) = serve(arbiter, "one")
    peers = [Peer(path) for _ in range(MOST_CONNECTIONS)]
    assert Peer(path, greet=False).closed()
    peers[0].socket.close()
    peers[1].say(Message(MessageKind.WANT))
    assert peers[1].hear().kind is MessageKind.TURN


def test_an_allocation_that_is_gone(arbiter: ArbiterProcess) -> None:
    one, two = serve(arbiter, "one", "two")
    peer = Peer(one)
    serve(arbiter, "two")
    assert peer.closed()
    Peer(two)


def test_another_arbiter_waits_for_the_first_to_end(tmp_path: Path) -> None:
    with ExitStack() as stack:
        first = ArbiterProcess(tmp_path)
        (path,) = serve(first, "one")
        second = stack.enter_context(ArbiterProcess(tmp_path))
        second.send(Assignment({str(path.parent): {GPU: Share()}}))
        Peer(path)
        first.stop()
        second.until_served([path])
        Peer(path)


def test_one_that_waits_for_the_first_to_end_ends_with_its_agent(tmp_path: Path) -> None:
    """Though it has not read yet what that agent said."""
    with ArbiterProcess(tmp_path) as first:
        (path,) = serve(first, "one")
        second = ArbiterProcess(tmp_path)
        second.send(Assignment({str(path.parent): {GPU: Share()}}))
        second.stop()
        Peer(path)


def test_lines_that_are_no_assignments(arbiter: ArbiterProcess) -> None:
    arbiter.send_raw(b'{"containers": 5}\nnonsense\n{"containers": {}, "more": 1}\n')
    (path,) = serve(arbiter, "one")
    Peer(path)


any_message = st.builds(
    lambda kind, version, gpu, turn, a, b, rest: b"".join(
        number.to_bytes(size, "little")
        for number, size in ((kind, 1), (version, 1), (gpu, 2), (turn, 4), (a, 8), (b, 8), (rest, 8))
    ),
    st.sampled_from([0, 1, 2, 3, 4, 5, 6, 65, 66, 67, 255]),
    st.sampled_from([0, 1, 2, 255]),
    st.sampled_from([0, 1, 15, 16, 65535]),
    st.sampled_from([0, 1, 2, 3, 2**32 - 1]),
    st.sampled_from([0, 1, A, 2**63, 2**64 - 1]),
    st.sampled_from([0, 1, B, 2**64 - 1]),
    st.sampled_from([0, 0, 0, 1]),
)
HELLO = Message(MessageKind.HELLO, a=1, b=1).encode()
MINE = Message(MessageKind.GPU, a=A, b=B).encode()


@settings(
    max_examples=examples(150),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(st.one_of(any_message, st.binary(max_size=70), st.sampled_from([HELLO, MINE])), max_size=30))
@example([HELLO, MINE, Message(MessageKind.DONE, turn=1, a=2**64 - 1, b=1).encode()])
def test_whatever_bytes_come_others_get_their_turns(arbiter: ArbiterProcess, chunks: list[bytes]) -> None:
    fuzzed, good = arbiter.paths if arbiter.paths else serve(arbiter, "fuzzed", "good")
    bad = socket.socket(socket.AF_UNIX)
    bad.connect(str(fuzzed))
    peer = Peer(good)
    try:
        for chunk in chunks:
            bad.sendall(chunk)
    except (BrokenPipeError, ConnectionResetError):
        pass
    peer.say(Message(MessageKind.WANT))
    assert peer.hear().kind is MessageKind.TURN
    bad.close()
    peer.socket.close()
