"""One connection of a process in a container: bytes from outside, of which nothing is believed."""

import asyncio
from typing import Final, Protocol

from gputile.arbiter.protocol import SIZE, Kind, Message, ProtocolError, agree, decode
from gputile.arbiter.turns import Grant, Instruction

HELLO_WITHIN_S: Final = 5.0
WINDOW_S: Final = 0.1
MOST_IN_WINDOW: Final = 200
MOST_UNSENT: Final = 16384  # bytes; one that does not read for so long is gone


class Desk(Protocol):
    """What a connection serves: the arbiter."""

    quantum: int

    def card_of(self, allocation: str, fields: tuple[int, int]) -> str | None:
        """Return the UUID of the container's card that ``CARD`` names, None where it is not the container's."""

    def said(self, allocation: str, member: int, uuid: str, message: Message) -> None:
        """Take in what a member says of a card."""

    def gone(self, allocation: str, member: int) -> None:
        """Take note that a connection has ended."""

    def complain(self, allocation: str, text: str) -> None:
        """Tell people of a container that misbehaves, now and then."""


class Connection(asyncio.Protocol):
    """Speaks with the process ``member`` of the container ``allocation``."""

    def __init__(self, allocation: str, member: int, desk: Desk) -> None:
        self._allocation = allocation
        self._member = member
        self._desk = desk
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._cards: dict[int, str] = {}
        self._agreed = False
        self._in_window = 0
        self._timers: list[asyncio.TimerHandle] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for ``HELLO``."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - for mypy: a stream socket
        self._transport = transport
        self._timers = [asyncio.get_running_loop().call_later(HELLO_WITHIN_S, self._expect_hello)]

    def data_received(self, data: bytes) -> None:
        """Take in the messages that are whole."""
        self._buffer += data
        whole = len(self._buffer) // SIZE
        messages = [bytes(self._buffer[i * SIZE : (i + 1) * SIZE]) for i in range(whole)]
        del self._buffer[: whole * SIZE]
        try:
            for message in messages:
                self._take(decode(message))
        except ProtocolError as error:
            self._desk.complain(self._allocation, f"a process is not understood: {error}")
            self.close()
            return
        self._count(whole)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the reason makes no difference
        """Take note that the process is gone."""
        for timer in self._timers:
            timer.cancel()
        self._transport = None
        self._desk.gone(self._allocation, self._member)

    def tell(self, uuid: str, instruction: Instruction) -> None:
        """Send an instruction about a card."""
        number = next(number for number, name in self._cards.items() if name == uuid)
        if isinstance(instruction, Grant):
            self._send(Message(Kind.TURN, number, instruction.turn, instruction.length))
        else:
            self._send(Message(Kind.LIMIT, number, instruction.turn, instruction.remaining))

    def acknowledge(self, number: int) -> None:
        """Tell the process that it is not forgotten; ``number`` is its own of the card."""
        self._send(Message(Kind.WAIT, number))

    def close(self) -> None:
        """End the connection, without waiting for what was not sent yet."""
        if self._transport is not None:
            self._transport.abort()

    def _take(self, message: Message) -> None:
        kind = message.kind
        if not self._agreed:
            self._greet(message)
        elif kind is Kind.CARD:
            uuid = self._desk.card_of(self._allocation, (message.a, message.b))
            if uuid is None or message.card in self._cards or uuid in self._cards.values():
                raise ProtocolError("a card that is not its own, or twice")
            self._cards[message.card] = uuid
        elif kind in (Kind.WANT, Kind.BUSY, Kind.DONE) and message.card in self._cards:
            self._desk.said(self._allocation, self._member, self._cards[message.card], message)
        else:
            raise ProtocolError(f"{kind.name} out of place")

    def _greet(self, message: Message) -> None:
        if message.kind is not Kind.HELLO or message.a > message.b:
            raise ProtocolError("no HELLO")
        version = agree(message.a, message.b)
        self._send(Message(Kind.WELCOME, a=version, b=self._desk.quantum))
        self._agreed = version != 0
        if not self._agreed and self._transport is not None:
            self._transport.close()

    def _expect_hello(self) -> None:
        if not self._agreed:
            self.close()

    def _count(self, messages: int) -> None:
        """Read no more for a moment from one that sends too much."""
        loop = asyncio.get_running_loop()
        if self._in_window == 0 and messages:
            self._timers[1:] = [loop.call_later(WINDOW_S, self._next_window)]
        self._in_window += messages
        if self._in_window > MOST_IN_WINDOW and self._transport is not None:
            self._transport.pause_reading()

    def _next_window(self) -> None:
        if self._in_window > MOST_IN_WINDOW and self._transport is not None:
            self._transport.resume_reading()
        self._in_window = 0

    def _send(self, message: Message) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if self._transport.get_write_buffer_size() > MOST_UNSENT:
            self._desk.complain(self._allocation, "a process does not read what it is told")
            self.close()
            return
        self._transport.write(message.encode())
