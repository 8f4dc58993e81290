"""Whatever the API server does to it, a reflector's view becomes equal to the store, and is equal after a re-list."""

import asyncio
from contextlib import AsyncExitStack

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from gputile.api.core import Pod
from gputile.kube.client import Attempts, Connection
from gputile.kube.reflector import Reflector, ReflectorSettings
from tests.conftest import HANGS_S, examples
from tests.fakes.apiserver import QUICK, FakeApiServer, until
from tests.unit.kube.views import PODS, View, pod, unreadable_pod

NAMES = st.sampled_from([f"p{i}" for i in range(5)])
STATUSES = st.sampled_from([401, 403, 404, 410, 429, 500, 503, 504])


class ReflectorMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.stack = AsyncExitStack()
        self.server = FakeApiServer()
        self.view = View()
        self.readable: set[str] = set()

    @initialize(names=st.sets(NAMES))
    def start(self, names: set[str]) -> None:
        self.server.store[PODS] = {}
        for name in sorted(names):
            self.put(name)
        self.runner.run(self._start())

    async def _start(self) -> None:
        await self.stack.enter_async_context(self.server.running())
        connection = Connection(self.server.access(), attempts=Attempts(2, QUICK), within=0.1)
        await self.stack.enter_async_context(connection)
        self.reflector = Reflector(
            connection,
            PODS,
            Pod,
            self.view,
            settings=ReflectorSettings(page_size=2, list_seconds=0.1, watch_seconds=(1, 1), margin=-0.9, backoff=QUICK),
        )
        self.task = asyncio.create_task(self.reflector.run())

    def teardown(self) -> None:
        async def stop() -> None:
            async with self.stack:
                try:
                    await self._settle()
                finally:
                    self.task.cancel()
                    await asyncio.wait([self.task])

        try:
            self.runner.run(stop())
        finally:
            self.runner.close()

    @rule(name=NAMES)
    def put(self, name: str) -> None:
        self.server.put(PODS, pod(name))
        self.readable.add(name)

    @rule(name=NAMES)
    def put_thrice(self, name: str) -> None:
        for _ in range(3):
            self.put(name)

    @rule(name=NAMES)
    def put_unreadable(self, name: str) -> None:
        self.server.put(PODS, unreadable_pod(name))
        self.readable.discard(name)

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        if name in self.server.store[PODS]:
            self.server.delete(PODS, name)
            self.readable.discard(name)

    @rule()
    def bookmark(self) -> None:
        self.server.bookmark(PODS)

    @rule(as_event=st.booleans())
    def compact(self, as_event: bool) -> None:
        self.server.gone_as_event = as_event
        self.server.compact()

    @rule(
        what=st.sampled_from(["cut", "silent", "end", "duplicate", "backwards", "garbage"]),
        after=st.integers(0, 2),
    )
    def spoil_watch(self, what: str, after: int) -> None:
        self._fault("watch", what, after=after)

    @rule(status=STATUSES, after=st.integers(0, 2))
    def fail_in_watch(self, status: int, after: int) -> None:
        self._fault("watch", "error", status=status, after=after)

    @rule(
        kind=st.sampled_from(["watch", "get", "page", "any"]),
        what=st.sampled_from(["answer", "reset", "cut", "hang"]),
        status=STATUSES,
    )
    def spoil_request(self, kind: str, what: str, status: int) -> None:
        self._fault(kind, what, status=status)

    def _fault(self, kind: str, what: str, *, after: int = 0, status: int = 500) -> None:
        """Plan a fault while few are planned: no precondition, since what is left of them depends on timing."""
        if len(self.server.faults) < 4:
            self.server.fault(kind, what, after=after, status=status)

    @rule()
    def let_time_pass(self) -> None:
        self.runner.run(asyncio.sleep(0.002))

    @rule()
    def settle(self) -> None:
        self.runner.run(self._settle())

    @rule()
    def relist(self) -> None:
        async def relist() -> None:
            async with asyncio.timeout(HANGS_S):
                await self.reflector.relist()

        self.runner.run(relist())
        assert self._equal()
        assert self.reflector.synced

    async def _settle(self) -> None:
        await until(self._equal)
        assert not self.task.done()

    def _equal(self) -> bool:
        stored = self.server.store[PODS]
        versions = {name: stored[name]["metadata"]["resourceVersion"] for name in self.readable}
        return self.view.versions == versions and self.view.unreadable == stored.keys() - self.readable


ReflectorMachine.TestCase.settings = settings(
    max_examples=examples(100), stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
TestReflector = ReflectorMachine.TestCase
