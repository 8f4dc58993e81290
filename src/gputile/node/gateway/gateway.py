"""Stands between a node's kubelet and whichever agent is there at the moment."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from gputile.node.gateway.messages import (
    Advertise,
    CallAnswer,
    CallRefused,
    FromAgent,
    ListDevices,
    Listed,
    MessageChannel,
    State,
    TakeCharge,
    to_agent,
)
from gputile.node.gateway.node_lock import NodeLock
from gputile.node.gateway.pod_resources import PodResources
from gputile.node.gateway.registration import Registrar
from gputile.node.gateway.relay import AWAY_FOR_S, Relay

log = logging.getLogger(__name__)

LOOK_EVERY_S = 2.0
QUIET_FOR_S = 90.0
ABANDONED_AFTER_S = 20.0


class AbandonedError(Exception):
    """This gateway made way for another one, which is gone: the node needs one that starts anew."""


class Gateway:
    """Serves one kubelet with one agent after the other: ``attend`` each, while ``run`` runs.

    ``device_plugins`` is the kubelet's directory of plugins' sockets, ``pod_resources`` its socket of that service.
    ``in_charge`` says whether an agent has taken charge of the node by now.
    """

    def __init__(self, device_plugins: Path, pod_resources: Path, node_lock: NodeLock) -> None:
        self.in_charge = False
        self._node_lock = node_lock
        self._relay = Relay()
        self._pod_resources = PodResources(pod_resources)
        self._registrar = Registrar(
            device_plugins, self._relay.call, lambda: not self.in_charge or node_lock.mine, self._tell
        )
        self._agent: MessageChannel[FromAgent] | None = None
        self._starts = 0
        self._others = False
        self._told = State()

    async def run(self) -> None:
        """Serve the kubelet until cancelled.

        Raises:
            AbandonedError: nobody serves the node any more.
        """
        serving = asyncio.get_running_loop().create_task(self._registrar.run())
        try:
            await self._watch_over(serving)
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            await self._pod_resources.close()

    async def attend(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one agent until it hangs up, or is to be ended because it hangs."""
        self._starts += 1
        self._others = not self.in_charge and self._registrar.others()
        self._agent, self._told = to_agent(reader, writer), State()
        self._tell()
        requests: asyncio.Queue[TakeCharge | Advertise] = asyncio.Queue()
        async with _tasks() as tasks:
            tasks.add(asyncio.create_task(self._grant(requests)))
            try:
                await self._hear(self._agent, requests, tasks)
            except msgspec.MsgspecError as error:
                log.error("the agent says what is not understood: %s", error)
            except TimeoutError:
                log.error("the agent has said nothing for %d s", QUIET_FOR_S)
            finally:
                self._relay.disconnect()
                self._agent.close()
                self._agent = None

    async def _hear(
        self,
        agent: MessageChannel[FromAgent],
        requests: "asyncio.Queue[TakeCharge | Advertise]",
        tasks: "set[asyncio.Task[None]]",
    ) -> None:
        """Take in what an agent says, until it hangs up.

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
                    self._relay.take(message)
                case ListDevices(number, within):
                    task = asyncio.create_task(self._list(agent, number, within))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                case request:
                    requests.put_nowait(request)

    async def _grant(self, requests: "asyncio.Queue[TakeCharge | Advertise]") -> None:
        """Do what the agent wants, one thing after the other; answers to the kubelet do not wait for it."""
        try:
            while True:
                match await requests.get():
                    case TakeCharge():
                        await self._take_charge()
                    case Advertise(resources, changed):
                        if self._agent is not None:
                            self._relay.connect(self._agent)
                        await self._registrar.advertise(resources, changed)
        except Exception:
            log.exception("what the agent wants cannot be done; another one is to try")
            if self._agent is not None:
                self._agent.close()

    async def _take_charge(self) -> None:
        if not self.in_charge:
            self._node_lock.take()
            await self._registrar.sweep()
            self.in_charge = True
        self._tell()

    async def _list(self, agent: MessageChannel[FromAgent], number: int, within: float) -> None:
        agent.send(Listed(number, await self._pod_resources.list(within)))

    async def _watch_over(self, serving: "asyncio.Task[None]") -> None:
        """Offer nothing where no agent has come back: pods would be held up, and fail one by one."""
        loop = asyncio.get_running_loop()
        served = loop.time()
        while True:
            await asyncio.wait((serving,), timeout=LOOK_EVERY_S)
            if serving.done():
                serving.result()
            now = loop.time()
            if self._relay.lost is not None and now - self._relay.lost > AWAY_FOR_S:
                await self._registrar.let_go()
            if not self._registrar.stood_down or self._registrar.others():
                served = now
            elif now - served > ABANDONED_AFTER_S:
                raise AbandonedError("the gateway that took over is gone")

    def _tell(self) -> None:
        registrar = self._registrar
        state = State(
            self.in_charge, registrar.registered, registrar.epoch, self._starts, self._others, registrar.listening
        )
        if self._agent is not None and state != self._told:
            self._told = state
            self._agent.send(state)


@contextlib.asynccontextmanager
async def _tasks() -> AsyncIterator[set[asyncio.Task[None]]]:
    tasks: set[asyncio.Task[None]] = set()
    try:
        yield tasks
    finally:
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
