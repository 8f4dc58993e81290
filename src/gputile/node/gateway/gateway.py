"""Relays the calls of a node's kubelet to the agent that currently runs.

A call waits for the next agent if no agent runs, or if the agent ends before it answers. The
kubelet has no deadline for ``Allocate``, and admits no other pod until the call is answered. So the
gateway limits the wait.
"""

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path

import grpc
import msgspec

from gputile.node.gateway.link import (
    FROM_AGENT,
    Advertise,
    Call,
    CallAnswer,
    CallRefused,
    FromAgent,
    ListDevices,
    Listed,
    MessageChannel,
    NodeLock,
    ServeClaims,
    State,
    TakeCharge,
)
from gputile.node.gateway.plugins import REGISTRY, ClaimsPlugin, RefusedError
from gputile.node.gateway.registration import CLIENT_OPTIONS, Registrar, SocketWatch

log = logging.getLogger(__name__)

AGENT_TIMEOUT_S = 25.0  # PreStartContainer times out in the kubelet after 30 s
# A call is refused if this many agents ended before they answered the call, and if the call has
# also waited for AGENT_TIMEOUT_S. An operator may kill several agents in quick succession.
MOST_TRIES = 3
SILENCE_TIMEOUT_S = 90.0
ABANDONED_AFTER_S = 20.0
LIST = "/v1.PodResourcesLister/List"
# The kubelet answers 100 calls a second in bursts of ten, and refuses more calls.
LIST_RETRY_S = 0.015


@dataclass(slots=True)
class _Pending:
    call: Call
    answer: asyncio.Future[bytes]
    since: float  # on the event loop's clock
    tries: int = 0


class Relay:
    """The kubelet's pending calls.

    ``lost`` is the time on the event loop's clock when the last agent ended, or None while an agent
    is connected.
    """

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
        """Return the agent's response to a call of the kubelet.

        Raises RefusedError if the agent refuses the call, if no agent connects in time, or if
        several agents end during the call.
        """
        loop = asyncio.get_running_loop()
        self._last += 1
        pending = _Pending(
            Call(self._last, method, resource, body), loop.create_future(), loop.time()
        )
        self._pending[self._last] = pending
        try:
            self._send(pending)
            while not pending.answer.done():
                left = (
                    AGENT_TIMEOUT_S
                    if self.lost is None
                    else self.lost + AGENT_TIMEOUT_S - loop.time()
                )
                if left <= 0:
                    raise RefusedError(
                        grpc.StatusCode.UNAVAILABLE, "the agent of this node does not run"
                    )
                await asyncio.wait((pending.answer,), timeout=left)
            return pending.answer.result()
        finally:
            del self._pending[pending.call.number]

    def answer(self, message: CallAnswer | CallRefused) -> None:
        """Complete a call with the agent's answer, unless the kubelet has cancelled the call."""
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
        waited = asyncio.get_running_loop().time() - pending.since
        if pending.tries >= MOST_TRIES and waited >= AGENT_TIMEOUT_S:
            log.error(
                "refusing %s for %s: every agent ended during this call",
                pending.call.method,
                pending.call.resource,
            )
            error = RefusedError(grpc.StatusCode.UNAVAILABLE, "this call crashes the node's agent")
            pending.answer.set_exception(error)
            return
        pending.tries += 1
        self._agent.send(pending.call)


async def list_pod_resources(kubelet: grpc.aio.Channel, within: float) -> bytes | None:
    """Return a ListPodResourcesResponse, or None if the kubelet sends none within ``within`` s."""
    ask: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = kubelet.unary_unary(LIST)
    problem = "no answer"
    try:
        async with asyncio.timeout(within):
            while True:
                try:
                    return await ask(b"")
                except grpc.aio.AioRpcError as error:
                    problem = error.details() or error.code().name
                await asyncio.sleep(LIST_RETRY_S)
    except TimeoutError:
        log.warning("the kubelet did not list its devices within %s s: %s", within, problem)
        return None


class AbandonedError(Exception):
    """The gateway that took over the node from this gateway has ended.

    This gateway must restart, because no gateway serves the node.
    """


class Gateway:
    """Serves one kubelet across restarts of the agent.

    While ``run`` is active, the caller calls ``attend`` for each agent. ``attend`` only records the
    agent's requests, and the loop in ``run`` executes them. ``device_plugins`` is the kubelet's
    directory of plugin sockets, and ``pod_resources`` is its PodResources socket. ``in_charge`` is
    True once an agent of this gateway has taken over the node.
    """

    def __init__(self, device_plugins: Path, pod_resources: Path, node_lock: NodeLock) -> None:
        self.in_charge = False
        self._node_lock = node_lock
        self._relay = Relay()
        # The only channel, because gRPC leaks memory for each channel that is created and closed.
        self._pod_resources = grpc.aio.insecure_channel(
            f"unix:{pod_resources}", options=CLIENT_OPTIONS
        )
        self._watch = SocketWatch(device_plugins)
        self._registrar = Registrar(device_plugins, self._relay.call, self._send_state)
        self._claims = ClaimsPlugin(pod_resources.parent.parent / REGISTRY, self._relay.call)
        self._agent: MessageChannel[FromAgent] | None = None
        self._charge_requested = False
        self._other_seen: float | None = None  # when the gateway that took over was last seen
        self._starts = 0
        self._others = False
        self._sent = State()

    async def run(self) -> None:
        """Serve the kubelet until cancelled.

        Raises AbandonedError if the gateway that took over the node has ended.
        """
        try:
            while True:
                await self._reconcile()
                await self._watch.changed(self._registrar.pause)
        finally:
            self._watch.close()
            await self._stop_serving()

    async def _reconcile(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._charge_requested and not self.in_charge:
            await self._take_charge()
        if self.in_charge and not self._node_lock.is_held:
            if self._other_seen is None:
                log.warning("this gateway stops serving: a newer gateway has taken over")
                await self._stop_serving()
            if self._other_seen is None or self._registrar.has_others():
                self._other_seen = now
            elif now - self._other_seen > ABANDONED_AFTER_S:
                raise AbandonedError("the gateway that took over has ended")
            return
        if self._relay.lost is not None and now - self._relay.lost > AGENT_TIMEOUT_S:
            # Otherwise each new pod would wait for an agent, and then fail.
            self._registrar.advertise((), {})
        await self._registrar.reconcile()
        await self._claims.reconcile()
        self._send_state()

    async def _take_charge(self) -> None:
        try:
            self._node_lock.acquire()
        except OSError:
            log.exception("restarting the agent: the lock on the node cannot be acquired")
            if self._agent is not None:
                self._agent.close()
            return
        await self._registrar.sweep()
        self.in_charge = True
        self._send_state()

    async def _stop_serving(self) -> None:
        await asyncio.gather(self._registrar.stop(), self._claims.stop())

    async def attend(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve an agent until it disconnects, sends an invalid message, or is silent for too long.

        A working agent regularly requests the kubelet's list of pods, so it is not silent for long.
        """
        self._starts += 1
        self._others = not self.in_charge and self._registrar.has_others()
        agent = self._agent = MessageChannel(reader, writer, FROM_AGENT)
        self._sent = State()
        self._send_state()
        lists: set[asyncio.Task[None]] = set()
        messages = aiter(agent.messages())
        try:
            while True:
                async with asyncio.timeout(SILENCE_TIMEOUT_S):
                    message = await anext(messages, None)
                match message:
                    case None:
                        return
                    case CallAnswer() | CallRefused():
                        self._relay.answer(message)
                    case ListDevices(number, within):
                        task = asyncio.create_task(self._list(agent, number, within))
                        lists.add(task)
                        task.add_done_callback(lists.discard)
                    case TakeCharge():
                        self._charge_requested = True
                        self._watch.wake()
                    case Advertise(resources, changed):
                        self._relay.connect(agent)
                        self._registrar.advertise(resources, changed)
                        self._watch.wake()
                    case ServeClaims(health):
                        self._relay.connect(agent)
                        self._claims.set_health(health)
                        self._watch.wake()
        except msgspec.MsgspecError as error:
            log.error("invalid message from the agent: %s", error)
        except TimeoutError:
            log.error("no message from the agent for %d s", SILENCE_TIMEOUT_S)
        finally:
            self._charge_requested = False
            self._relay.disconnect()
            agent.close()
            self._agent = None
            for task in lists:
                task.cancel()
            await asyncio.gather(*lists, return_exceptions=True)

    async def _list(self, agent: MessageChannel[FromAgent], number: int, within: float) -> None:
        agent.send(Listed(number, await list_pod_resources(self._pod_resources, within)))

    def _send_state(self) -> None:
        registrar = self._registrar
        state = State(
            self.in_charge,
            registrar.registered,
            registrar.epoch,
            self._starts,
            self._others,
            registrar.listening,
        )
        if self._agent is not None and state != self._sent:
            self._sent = state
            self._agent.send(state)
