"""Carries the kubelet's calls to the agent.

Calls that come while no agent runs, or that one left unanswered, wait.

``Allocate`` has no deadline in the kubelet and holds up its admission of all pods, so the waiting has one here.
"""

import asyncio
import logging
from dataclasses import dataclass

import grpc

from gputile.node.gateway.messages import Call, CallAnswer, CallRefused, FromAgent, MessageChannel

log = logging.getLogger(__name__)

AWAY_FOR_S = 25.0  # the kubelet gives up PreStartContainer after 30 s
MOST_TRIES = 3  # a call that kills agents is not tried for ever


class RefusedError(Exception):
    """The call fails, with a gRPC status."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code


@dataclass(slots=True)
class _Pending:
    call: Call
    answer: asyncio.Future[bytes]
    tries: int = 0


class Relay:
    """The calls under way. ``lost`` is when the agent was lost, on the event loop's clock; None while it is there."""

    def __init__(self) -> None:
        self.lost: float | None = None
        self._agent: MessageChannel[FromAgent] | None = None
        self._pending: dict[int, _Pending] = {}
        self._last = 0

    def connect(self, agent: MessageChannel[FromAgent]) -> None:
        if agent is self._agent:
            return
        self._agent, self.lost = agent, None
        for pending in tuple(self._pending.values()):
            self._send(pending)

    def disconnect(self) -> None:
        if self._agent is not None:
            self._agent, self.lost = None, asyncio.get_running_loop().time()

    async def call(self, method: str, resource: str, body: bytes) -> bytes:
        """Return the agent's answer to a call of the kubelet.

        Raises:
            RefusedError: the agent refuses it, or has been away for too long.
        """
        loop = asyncio.get_running_loop()
        self._last += 1
        pending = _Pending(Call(self._last, method, resource, body), loop.create_future())
        self._pending[self._last] = pending
        try:
            self._send(pending)
            while not pending.answer.done():
                left = AWAY_FOR_S if self.lost is None else self.lost + AWAY_FOR_S - loop.time()
                if left <= 0:
                    raise RefusedError(grpc.StatusCode.UNAVAILABLE, "the agent of this node does not run")
                await asyncio.wait((pending.answer,), timeout=left)
            return pending.answer.result()
        finally:
            del self._pending[pending.call.number]

    def take(self, message: CallAnswer | CallRefused) -> None:
        """Take in what the agent says to a call; the kubelet may have given it up by now."""
        pending = self._pending.get(message.number)
        if pending is None or pending.answer.done():
            return
        match message:
            case CallAnswer(_, body):
                pending.answer.set_result(body)
            case CallRefused(_, code, details):
                pending.answer.set_exception(RefusedError(grpc.StatusCode[code], details))

    def _send(self, pending: _Pending) -> None:
        if self._agent is None:
            return
        if pending.tries == MOST_TRIES:
            log.error("%s of %s is given up: no agent has survived it", pending.call.method, pending.call.resource)
            error = RefusedError(grpc.StatusCode.UNAVAILABLE, "this call crashes the node's agent")
            pending.answer.set_exception(error)
            return
        pending.tries += 1
        self._agent.send(pending.call)
