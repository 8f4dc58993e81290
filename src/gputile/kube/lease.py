"""Elects one active replica by a Lease, without synchronized clocks.

This module starts no background task. A replica calls ``LeaseHolder.acquire`` to become active, and
``LeaseHolder.renew`` to stay active. A standby replica calls ``LeaseHolder.observe`` regularly. So
the standby knows whether the holder is alive as soon as it wants to take over.

A replica never compares a timestamp of another machine with its own clock. It measures on its
monotonic clock how long the stored Lease has been unchanged. It takes the Lease over when that time
exceeds both the duration in the Lease and its own configured duration. The configured duration is
needed because a user may have shortened the duration in the Lease without the holder's knowledge.
For the holder, the duration begins before it sent its last successful renewal. For other replicas,
the duration begins later, when they observe the renewal. So if clocks run at the same rate, two
replicas never both believe that they hold the Lease, however long requests take.

A missing Lease may have been deleted while a replica held it. Until the Lease's duration ends, that
replica believes that it is the holder. So the Lease is first created with a placeholder as its
holder, and then taken over as if the holder had died. For this, all replicas must be configured
with the same duration. A Lease that has no holder but was not released is taken over likewise.
"""

import asyncio
import math
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import msgspec

from gputile.api.conversion import ConversionError, decode, micro_timestamp_of
from gputile.api.workloads import Lease
from gputile.kube.client import SYSTEM_CLOCK, Clock, Connection
from gputile.kube.errors import BadAnswer, Conflict, NotFound

_LEASE = msgspec.json.Decoder(Lease)
NEVER = -math.inf
NOBODY_YET = "nobody yet: the Lease was made anew"
"""The holder of a Lease that was just created. No replica has this identity."""
RELEASED_S = 1.0
"""The duration that marks a Lease with an empty holder as released by its holder."""


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """The fields of a stored Lease that the election uses."""

    resource_version: str
    holder: str  # empty if there is no holder
    duration: float  # seconds, 0 if unset
    transitions: int = 0
    uid: str = ""  # distinguishes the Lease from a deleted Lease of the same name

    @property
    def released(self) -> bool:
        return not self.holder and self.duration == RELEASED_S


class LeaseStep(Enum):
    """The next step of a replica that wants the Lease."""

    CREATE = "create"
    ACQUIRE = "take"
    RENEW = "renew"
    WAIT = "wait"


class LeaseState:
    """The state of a Lease as one replica knows it.

    All times are seconds of the replica's monotonic clock. ``identity`` must be unique among
    running processes. A process that restarts with the same identity resumes its Lease at once. The
    replica stops acting ``margin`` seconds before the Lease ends. The margin allows for clocks
    that run at slightly different rates, and for decisions in progress.

    ``vacated`` states whether the previous holder had released the Lease, and so had no requests in
    flight. ``given_up`` states whether this replica has given up the Lease for good.
    """

    def __init__(self, identity: str, duration: float, margin: float) -> None:
        if not identity:
            raise ValueError("a Lease needs a holder with a name")
        if not 0 <= margin < duration:
            raise ValueError(
                f"the margin ({margin:g} s) must be shorter than the Lease ({duration:g} s)"
            )
        self.identity = identity
        self.duration = float(math.ceil(duration))  # the API counts whole seconds
        self.margin = margin
        self.valid_until = NEVER
        self.record: LeaseRecord | None = None
        self.vacated = False
        self.given_up = False
        self._seen_at = NEVER

    def valid(self, now: float) -> bool:
        """Return whether this replica certainly holds the Lease at ``now``."""
        return now < self.valid_until

    def observe(self, record: LeaseRecord | None, now: float) -> None:
        """Store the record read at ``now``. A new version restarts the wait before a takeover."""
        if (
            record is None
            or self.record is None
            or record.resource_version != self.record.resource_version
        ):
            self._seen_at = now
        self.record = record
        if record is None or record.holder != self.identity:
            self.valid_until = NEVER

    def next_step(self, now: float) -> LeaseStep:
        """Return the step to take at ``now`` in order to hold the Lease."""
        if self.given_up:
            return LeaseStep.WAIT
        if self.record is None:
            return LeaseStep.CREATE
        if self.record.holder == self.identity:
            return LeaseStep.RENEW
        return LeaseStep.ACQUIRE if now >= self.free_at else LeaseStep.WAIT

    @property
    def free_at(self) -> float:
        """The time at which the Lease can be taken over if its holder does not renew it."""
        if self.record is None or self.record.released:
            return NEVER
        return self._seen_at + max(self.duration, self.record.duration)

    def next_record(self) -> LeaseRecord:
        """Return the record to write. The write must fail if the resourceVersion is outdated."""
        if self.record is None:
            return LeaseRecord("", NOBODY_YET, self.duration)
        transitions = self.record.transitions + (self.record.holder != self.identity)
        return LeaseRecord(
            self.record.resource_version, self.identity, self.duration, transitions, self.record.uid
        )

    def record_write(self, record: LeaseRecord, started: float, now: float) -> None:
        """Update the state after a request that stored ``record``.

        The request was sent at ``started`` or later, and its response arrived at ``now``.
        """
        before = self.record
        self.observe(record, now)
        if record.holder == self.identity:
            if before is not None and before.holder != self.identity:
                self.vacated = before.released
            self.valid_until = NEVER if self.given_up else started + self.duration - self.margin

    def give_up(self) -> None:
        """Stop acting as the holder, and never acquire the Lease again."""
        self.given_up = True
        self.valid_until = NEVER


class LeaseHolder:
    """Reads and writes one Lease for a ``LeaseState``, one request at a time.

    ``within`` is the time limit of a request in seconds. It should be well below the Lease's
    duration. Methods raise a ``KubeError`` if the Lease cannot be read or written. After such
    an error, a Lease that this replica holds stays valid until its end.
    """

    def __init__(
        self,
        connection: Connection,
        namespace: str,
        name: str,
        state: LeaseState,
        *,
        within: float = 5.0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._connection = connection
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._path = f"{self._collection}/{name}"
        self._name = name
        self._state = state
        self._within = within
        self._clock = clock
        self._lock = asyncio.Lock()

    @property
    def holder(self) -> str:
        """The Lease's holder at the last read or write. It is empty if there is no holder."""
        return self._state.record.holder if self._state.record else ""

    @property
    def term(self) -> tuple[str, int]:
        """The UID and the number of transitions at the last read or write of the Lease.

        While both stay the same, no other replica has held the Lease. A recreated Lease has another
        UID.
        """
        record = self._state.record
        return (record.uid, record.transitions) if record else ("", 0)

    @property
    def vacated(self) -> bool:
        return self._state.vacated

    def valid(self) -> bool:
        """Return whether this replica holds the Lease now."""
        return self._state.valid(self._clock.monotonic())

    async def observe(self) -> None:
        async with self._lock:
            await self._read()

    async def acquire(self) -> bool:
        """Read the Lease, and take it if it is free, expired or this replica's own.

        Return whether this replica holds the Lease. A missing Lease is created with a placeholder
        as its holder. The module's docstring explains why.
        """
        async with self._lock:
            await self._read()
            return await self._acquire_or_renew()

    async def renew(self) -> bool:
        """Renew the Lease without reading it first. Return whether this replica holds it."""
        async with self._lock:
            return await self._acquire_or_renew()

    def give_up(self) -> None:
        """Stop acting as the holder, and never acquire the Lease again. It expires by itself."""
        self._state.give_up()

    async def release(self) -> None:
        """Give up the Lease, so that another replica need not wait for its end.

        Nothing is written if this replica does not hold the Lease.

        Raises:
            KubeError: the Lease cannot be written. This replica stops acting nevertheless.
        """
        self.give_up()
        async with self._lock:
            for _ in range(2):
                record = self._state.record
                if record is None or record.holder != self._state.identity:
                    return
                released = replace(record, holder="", duration=RELEASED_S)
                try:
                    stored = await self._write(LeaseStep.RENEW, released)
                # The cause may be a renewal by this replica whose response was lost.
                except (Conflict, NotFound):
                    await self._read()
                    continue
                self._state.observe(stored, self._clock.monotonic())

    async def _acquire_or_renew(self) -> bool:
        for _ in range(2):
            step = self._state.next_step(self._clock.monotonic())
            if step is LeaseStep.WAIT:
                return False
            started = self._clock.monotonic()
            try:
                stored = await self._write(step, self._state.next_record())
            except (Conflict, NotFound):
                await self._read()
                continue
            self._state.record_write(stored, started, self._clock.monotonic())
            break
        return self.valid()

    async def _read(self) -> None:
        try:
            record = _record(await self._connection.get(self._path, within=self._within))
        except NotFound:
            record = None
        self._state.observe(record, self._clock.monotonic())

    async def _write(self, step: LeaseStep, record: LeaseRecord) -> LeaseRecord:
        stamp = micro_timestamp_of(self._clock.now())
        spec: dict[str, Any] = {
            "holderIdentity": record.holder,
            "leaseDurationSeconds": int(record.duration),
            "leaseTransitions": record.transitions,
            "renewTime": stamp,
        }
        if step is not LeaseStep.RENEW:
            spec["acquireTime"] = stamp
        body: dict[str, Any] = {"metadata": {"name": self._name}, "spec": spec}
        if step is LeaseStep.CREATE:
            body |= {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
            answer = await self._connection.post(
                self._collection, msgspec.json.encode(body), within=self._within
            )
        else:
            # With the version, the API server answers Conflict if the Lease has changed since.
            body["metadata"]["resourceVersion"] = record.resource_version
            answer = await self._connection.patch(
                self._path, msgspec.json.encode(body), within=self._within
            )
        return _record(answer)


def _record(answer: bytes) -> LeaseRecord:
    try:
        lease = decode(answer, _LEASE)
    except ConversionError as error:
        raise BadAnswer(f"the response is not a Lease: {error}") from error
    spec = lease.spec
    return LeaseRecord(
        resource_version=lease.metadata.resource_version,
        uid=lease.metadata.uid,
        holder=spec.holder_identity or "",
        duration=float(spec.lease_duration_seconds or 0),
        transitions=spec.lease_transitions or 0,
    )
