"""Stands between a node's kubelet and whichever agent is there at the moment.

Calls of the kubelet that come while no agent runs, or that one left unanswered, wait for the next agent. ``Allocate``
has no deadline in the kubelet and holds up its admission of all pods, so the waiting has one here.
"""

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path

import grpc
import msgspec

from gputile.node.gateway.claims import REGISTRY, ClaimsPlugin
from gputile.node.gateway.link import (
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
    to_agent,
)
from gputile.node.gateway.registration import CLIENT_OPTIONS, RefusedError, Registrar

log = logging.getLogger(__name__)

AWAY_FOR_S = 25.0  # the kubelet gives up PreStartContainer after 30 s
# A call is blamed for the death of so many agents only if it has also waited for AWAY_FOR_S: an operator may kill
# several agents within a moment.
MOST_TRIES = 3
LOOK_EVERY_S = 2.0
QUIET_FOR_S = 90.0
ABANDONED_AFTER_S = 20.0
LIST = "/v1.PodResourcesLister/List"
LIST_AGAIN_AFTER_S = 0.015  # the kubelet answers 100 calls a second, ten at once, and refuses the others


@dataclass(slots=True)
class _Pending:
    call: Call
    answer: asyncio.Future[bytes]
    since: float  # on the event loop's clock
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
        pending = _Pending(Call(self._last, method, resource, body), loop.create_future(), loop.time())
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

    def answer(self, message: CallAnswer | CallRefused) -> None:
        """Hand on the agent's answer to a call; the kubelet may have given the call up by now."""
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
        if pending.tries >= MOST_TRIES and waited >= AWAY_FOR_S:
            log.error("%s of %s is given up: no agent has survived it", pending.call.method, pending.call.resource)
            error = RefusedError(grpc.StatusCode.UNAVAILABLE, "this call crashes the node's agent")
            pending.answer.set_exception(error)
            return
        pending.tries += 1
        self._agent.send(pending.call)


async def list_pod_resources(kubelet: grpc.aio.Channel, within: float) -> bytes | None:
    """Return the kubelet's ListPodResourcesResponse, None where there is none within so many seconds."""
    ask: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = kubelet.unary_unary(LIST)
    last = "no answer"
    try:
        async with asyncio.timeout(within):
            while True:
                try:
                    return await ask(b"")
                except grpc.aio.AioRpcError as error:
                    last = error.details() or error.code().name
                await asyncio.sleep(LIST_AGAIN_AFTER_S)
    except TimeoutError:
        log.warning("the kubelet has not listed its devices within %s s: %s", within, last)
        return None


class AbandonedError(Exception):
    """The gateway that took over from this one is gone: the node needs one that starts anew."""


class Gateway:
    """Serves one kubelet with one agent after the other: ``attend`` each, while ``run`` runs.

    ``device_plugins`` is the kubelet's directory of plugins' sockets, ``pod_resources`` its socket of that service.
    ``in_charge`` says whether an agent has taken charge of the node by now.
    """

    def __init__(self, device_plugins: Path, pod_resources: Path, node_lock: NodeLock) -> None:
        self.in_charge = False
        self._node_lock = node_lock
        self._relay = Relay()
        # One for good: each that is made and closed costs memory that gRPC does not give back.
        self._pod_resources = grpc.aio.insecure_channel(f"unix:{pod_resources}", options=CLIENT_OPTIONS)
        self._registrar = Registrar(
            device_plugins, self._relay.call, lambda: not self.in_charge or node_lock.mine, self._send_state
        )
        self._claims = ClaimsPlugin(pod_resources.parent.parent / REGISTRY, self._relay.call)
        self._agent: MessageChannel[FromAgent] | None = None
        self._starts = 0
        self._others = False
        self._sent = State()

    async def run(self) -> None:
        """Serve the kubelet until cancelled.

        Raises:
            AbandonedError: nobody serves the node any more.
        """
        serving = asyncio.get_running_loop().create_task(self._registrar.run())
        try:
            await self._supervise(serving)
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            await self._claims.stop()

    async def _supervise(self, serving: "asyncio.Task[None]") -> None:
        """Withdraw all resources if no agent comes back: pods would wait for it, and fail one by one."""
        loop = asyncio.get_running_loop()
        served = loop.time()
        while True:
            await asyncio.wait((serving,), timeout=LOOK_EVERY_S)
            if serving.done():
                serving.result()
            now = loop.time()
            if self._relay.lost is not None and now - self._relay.lost > AWAY_FOR_S:
                await self._registrar.withdraw()
            await self._claims.reconcile(in_charge=not self._registrar.stood_down)
            if not self._registrar.stood_down or self._registrar.others():
                served = now
            elif now - served > ABANDONED_AFTER_S:
                raise AbandonedError("the gateway that took over is gone")

    async def attend(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one agent until it hangs up, or is to be ended because it hangs."""
        self._starts += 1
        self._others = not self.in_charge and self._registrar.others()
        agent = self._agent = to_agent(reader, writer)
        self._sent = State()
        self._send_state()
        requests: asyncio.Queue[TakeCharge | Advertise | ServeClaims] = asyncio.Queue()
        tasks = {asyncio.create_task(self._serve_requests(agent, requests))}
        try:
            await self._receive(agent, requests, tasks)
        except msgspec.MsgspecError as error:
            log.error("the agent says what is not understood: %s", error)
        except TimeoutError:
            log.error("the agent has said nothing for %d s", QUIET_FOR_S)
        finally:
            self._relay.disconnect()
            agent.close()
            self._agent = None
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _receive(
        self,
        agent: MessageChannel[FromAgent],
        requests: "asyncio.Queue[TakeCharge | Advertise | ServeClaims]",
        tasks: "set[asyncio.Task[None]]",
    ) -> None:
        """Handle an agent's messages until it hangs up.

        Raises:
            TimeoutError: it hangs; one that works asks for the pods' devices again and again.
        """
        messages = aiter(agent.messages())
        while True:
            async with asyncio.timeout(QUIET_FOR_S):
                message = await anext(messages, None)
            match message:
                case None:
                    return
                case CallAnswer() | CallRefused():
                    self._relay.answer(message)
                case ListDevices(number, within):
                    task = asyncio.create_task(self._list(agent, number, within))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                case request:
                    requests.put_nowait(request)

    async def _list(self, agent: MessageChannel[FromAgent], number: int, within: float) -> None:
        agent.send(Listed(number, await list_pod_resources(self._pod_resources, within)))

    async def _serve_requests(
        self, agent: MessageChannel[FromAgent], requests: "asyncio.Queue[TakeCharge | Advertise | ServeClaims]"
    ) -> None:
        """Do what the agent wants, one thing after the other; answers to the kubelet do not wait for it."""
        try:
            while True:
                match await requests.get():
                    case TakeCharge():
                        if not self.in_charge:
                            self._node_lock.take()
                            await self._registrar.sweep()
                            self.in_charge = True
                        self._send_state()
                    case Advertise(resources, changed):
                        self._relay.connect(agent)
                        await self._registrar.advertise(resources, changed)
                    case ServeClaims(health):
                        self._relay.connect(agent)
                        await self._claims.serve(health)
        except Exception:
            log.exception("what the agent wants cannot be done; another one is to try")
            agent.close()

    def _send_state(self) -> None:
        registrar = self._registrar
        state = State(
            self.in_charge, registrar.registered, registrar.epoch, self._starts, self._others, registrar.listening
        )
        if self._agent is not None and state != self._sent:
            self._sent = state
            self._agent.send(state)
