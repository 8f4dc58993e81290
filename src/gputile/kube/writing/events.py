"""Sends events on pods and nodes, as ``kubectl describe`` shows them. Scheduling never waits for them."""

import asyncio
import logging
import uuid
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn

import msgspec

from gputile.api.core import ObjectReference
from gputile.api.timestamps import timestamp_of
from gputile.kube.backoff import Backoff
from gputile.kube.clock import SYSTEM_CLOCK, Clock
from gputile.kube.errors import ConnectionFailed, KubeError, NotFound, TooManyRequests
from gputile.kube.transport.connection import Connection
from gputile.kube.writing.event_buffer import EventBuffer, EventKey, Occurrences, shortened

log = logging.getLogger(__name__)

COMPONENT = "gputile"
NAME_LENGTH = 253


@dataclass(frozen=True, slots=True)
class EventLimits:
    """How many events are sent: ``per_second`` on average, ``burst`` at once; at most ``capacity`` wait for that.

    After a failure as long as ``backoff`` says goes by before the next attempt.
    """

    per_second: float = 10.0
    burst: int = 50
    capacity: int = 4096
    backoff: Backoff = field(default_factory=Backoff)


_LIMITS = EventLimits()


class EventRecorder:
    """Takes events at any rate and sends them within ``limits``.

    ``instance`` names this process among its like. ``failed`` and ``dropped`` count the events that were not sent,
    because the API server refused them and because too many were waiting. Namespaces take turns.
    """

    def __init__(
        self,
        connection: Connection,
        instance: str,
        *,
        limits: EventLimits = _LIMITS,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.failed = 0
        self._connection = connection
        self._instance = instance
        self._limits = limits
        self._box = EventBuffer(limits.capacity)
        self._clock = clock
        self._filled = asyncio.Event()

    @property
    def dropped(self) -> int:
        """How many events were dropped because too many were waiting."""
        return self._box.dropped

    @property
    def remembered(self) -> int:
        """How many Events were written that the same again would count up."""
        return self._box.remembered

    @property
    def waiting(self) -> int:
        """How many events are to be sent; occurrences of the same event count once."""
        return len(self._box)

    def record(
        self,
        about: ObjectReference,
        reason: str,
        message: str,
        kind: Literal["Normal", "Warning"] = "Normal",
        *,
        latest: bool = False,
    ) -> None:
        """Say something about an object. Returns at once; the same again within ten minutes only counts up.

        ``reason`` is one word in CamelCase; of ``message`` the first 1024 bytes are sent. With ``latest`` an event of
        the same reason is the same whatever it says, and what was said last stands: for messages with amounts that
        change all the time.
        """
        text = shortened(message)
        key = EventKey(about.kind, about.namespace, about.name, about.uid, kind, reason, "" if latest else text)
        self._box.put(key, about, self._clock.now(), self._clock.monotonic(), text)
        self._filled.set()

    async def run(self) -> NoReturn:
        """Send what is recorded, until cancelled."""
        limits, failures = self._limits, 0
        paid_until = self._clock.monotonic()  # each event pays for 1 / per_second; a burst may run ahead of the clock
        while True:
            await self._until_filled()
            paid_until = max(paid_until, self._clock.monotonic())
            ahead = paid_until - self._clock.monotonic() - (limits.burst - 1) / limits.per_second
            if ahead > 0:
                await self._clock.sleep(ahead)
            paid_until += 1 / limits.per_second
            key, occurrences = self._box.take()
            try:
                await self._send(key, occurrences)
            except (ConnectionFailed, TooManyRequests) as error:
                self._box.put_back(key, occurrences)
                await self._clock.sleep(max(self._limits.backoff.delay(failures), error.retry_after))
                failures += 1
                continue
            except KubeError as error:
                self.failed += 1
                log.log(logging.INFO if failures else logging.WARNING, "an event was not sent: %s", error)
                failures += 1
                continue
            failures = 0
            self._box.sent(key, occurrences)

    async def _until_filled(self) -> None:
        while not self._box:
            self._filled.clear()
            await self._filled.wait()

    async def _send(self, key: EventKey, occurrences: Occurrences) -> None:
        # the events of cluster-scoped objects live in the default namespace
        collection = f"/api/v1/namespaces/{key.namespace or 'default'}/events"
        if occurrences.stored_as:
            change: dict[str, Any] = {"count": occurrences.count, "lastTimestamp": timestamp_of(occurrences.last)}
            if not key.message:
                change["message"] = occurrences.message
            try:
                await self._connection.patch(f"{collection}/{occurrences.stored_as}", msgspec.json.encode(change))
                return
            except NotFound:
                log.debug("event %s has expired", occurrences.stored_as)
        suffix = f".{uuid.uuid4().hex[:16]}"
        name = key.name[: NAME_LENGTH - len(suffix)].rstrip(".-") + suffix
        body = self._event(name, collection.split("/")[4], key, occurrences)
        await self._connection.post(collection, msgspec.json.encode(body))
        occurrences.stored_as = name

    def _event(self, name: str, namespace: str, key: EventKey, occurrences: Occurrences) -> dict[str, Any]:
        about = occurrences.about
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": {
                "apiVersion": about.api_version or "v1",
                "kind": about.kind,
                "namespace": about.namespace,
                "name": about.name,
                "uid": about.uid,
            },
            "type": key.type,
            "reason": key.reason,
            "message": occurrences.message,
            "count": occurrences.count,
            "firstTimestamp": timestamp_of(occurrences.first),
            "lastTimestamp": timestamp_of(occurrences.last),
            "source": {"component": COMPONENT},
            "reportingComponent": COMPONENT,
            "reportingInstance": self._instance,
        }
