"""Keeps one replica active, by a Lease, without a clock that machines would have to agree on.

The lease follows the traffic: nothing here renews by itself. A replica that is asked to schedule calls
``LeaseHolder.acquire`` and then ``LeaseHolder.renew`` as long as it is asked; a standby calls ``LeaseHolder.observe``
now and then, so that it knows at once whether the holder is alive when it is needed.

A replica never compares a time written by another machine with its own clock. It measures on its own monotonic clock
for how long a record has not changed, and takes the lease over once that is longer than the record's duration and its
own: somebody may have written a shorter one by hand, of which the holder does not know. The holder counts from the
moment before it sent its last successful renewal, which is earlier than anybody can have seen it. So while clocks run
at the same rate no two replicas believe that they hold the lease, however long requests take.

A lease that is not there may have been deleted while somebody held it, who still believes so for the lease's duration.
So it is created for nobody, and then taken as if its holder had died. For that all replicas need the same duration. A
lease that names no holder and was not released is taken in the same way: somebody may have removed the holder's name.
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
"""The holder of a lease that was just created; no process has a name like this."""
RELEASED_S = 1.0
"""The duration of a lease that its holder has released: without it an empty holder was written by somebody else."""


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """What the API server has of a lease: ``holder``, "" for nobody, and the ``duration`` in seconds, 0 for unsaid.

    ``uid`` tells it from one of the same name that was deleted.
    """

    resource_version: str
    holder: str
    duration: float
    transitions: int = 0
    uid: str = ""

    @property
    def released(self) -> bool:
        """Whether its last holder has given it up."""
        return not self.holder and self.duration == RELEASED_S


class LeaseStep(Enum):
    """What a replica that wants the lease does next."""

    CREATE = "create"
    TAKE = "take"
    RENEW = "renew"
    WAIT = "wait"


class LeaseState:
    """One replica's knowledge of one lease, and its claim to it. All times are of the replica's monotonic clock.

    ``identity`` must be unlike that of any other process that runs at the same time; a process that starts again under
    the same one resumes its lease at once. ``margin`` is how many seconds before the end the claim is given up, for
    clocks that do not run at quite the same rate and for decisions already on their way.

    ``vacated`` says whether the one before had released the lease when this replica took it: it had nothing under way.
    ``given_up`` says that this replica stops: whatever it still has under way, it takes the lease no more.
    """

    def __init__(self, identity: str, duration: float, margin: float) -> None:
        if not identity:
            raise ValueError("a lease needs a holder with a name")
        if not 0 <= margin < duration:
            raise ValueError(f"the margin ({margin:g} s) must be shorter than the lease ({duration:g} s)")
        self.identity = identity
        self.duration = float(math.ceil(duration))  # the API counts whole seconds
        self.margin = margin
        self.valid_until = NEVER
        self.record: LeaseRecord | None = None
        self.vacated = False
        self.given_up = False
        self._seen_at = NEVER

    def valid(self, now: float) -> bool:
        """Return whether the lease is certainly this replica's."""
        return now < self.valid_until

    def seen(self, record: LeaseRecord | None, now: float) -> None:
        """Take note of what was read; a record counts as new at the time of this call if anything in it changed."""
        if record is None or self.record is None or record.resource_version != self.record.resource_version:
            self._seen_at = now
        self.record = record
        if record is None or record.holder != self.identity:
            self.valid_until = NEVER

    def next_step(self, now: float) -> LeaseStep:
        """Return what to do in order to hold the lease."""
        if self.given_up:
            return LeaseStep.WAIT
        if self.record is None:
            return LeaseStep.CREATE
        if self.record.holder == self.identity:
            return LeaseStep.RENEW
        return LeaseStep.TAKE if now >= self.expected_free_at else LeaseStep.WAIT

    @property
    def expected_free_at(self) -> float:
        """When the lease can be taken over if its holder does not renew it."""
        if self.record is None or self.record.released:
            return NEVER
        return self._seen_at + max(self.duration, self.record.duration)

    def wanted(self) -> LeaseRecord:
        """Return the record to write, on the condition that the version in it is still the current one."""
        if self.record is None:
            return LeaseRecord("", NOBODY_YET, self.duration)
        transitions = self.record.transitions + (self.record.holder != self.identity)
        return LeaseRecord(self.record.resource_version, self.identity, self.duration, transitions, self.record.uid)

    def written(self, record: LeaseRecord, started: float, now: float) -> None:
        """Take note that this replica's ``record`` was stored, by a request sent no earlier than ``started``."""
        before = self.record
        self.seen(record, now)
        if record.holder == self.identity:
            if before is not None and before.holder != self.identity:
                self.vacated = before.released
            self.valid_until = NEVER if self.given_up else started + self.duration - self.margin

    def give_up(self) -> None:
        """Stop believing in the claim, for good, as one does before releasing the lease."""
        self.given_up = True
        self.valid_until = NEVER


class LeaseHolder:
    """Reads and writes one lease on behalf of a ``LeaseState``; one request at a time.

    ``within`` is how many seconds a request may take; it should be well below the lease's duration.
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
        """Who held the lease when it was last read or written, or ""."""
        return self._state.record.holder if self._state.record else ""

    @property
    def term(self) -> tuple[str, int]:
        """The lease's UID and how often it has changed hands, as of when it was last read or written.

        Nobody else has held it while that is the same: one that was deleted and made again has another UID.
        """
        record = self._state.record
        return (record.uid, record.transitions) if record else ("", 0)

    @property
    def vacated(self) -> bool:
        """Whether the one before had released the lease when this replica took it."""
        return self._state.vacated

    def valid(self) -> bool:
        """Return whether this replica is the active one, now."""
        return self._state.valid(self._clock.monotonic())

    async def observe(self) -> None:
        """Read the lease.

        Raises:
            KubeError: it cannot be read.
        """
        async with self._lock:
            await self._read()

    async def acquire(self) -> bool:
        """Read the lease, take it if it is free, expired or this replica's own; return whether it is held.

        A lease that is not there is made, and can be taken when its duration is over: see ``lease_state``.

        Raises:
            KubeError: it cannot be read or written. The lease stays this replica's until its end all the same.
        """
        async with self._lock:
            await self._read()
            return await self._claim()

    async def renew(self) -> bool:
        """Write the lease that this replica holds; return whether it is held. Reads it only if somebody changed it.

        Raises:
            KubeError: it cannot be read or written. The lease stays this replica's until its end all the same.
        """
        async with self._lock:
            return await self._claim()

    def give_up(self) -> None:
        """Stop holding the lease, and take it no more; it lapses by itself."""
        self._state.give_up()

    async def release(self) -> None:
        """Give the lease up, so that another replica need not wait for its end. Nothing is written if it is not held.

        Raises:
            KubeError: it cannot be written. This replica stops acting all the same.
        """
        self.give_up()
        async with self._lock:
            for _ in range(2):
                record = self._state.record
                if record is None or record.holder != self._state.identity:
                    return
                nobody = replace(record, holder="", duration=RELEASED_S)
                try:
                    stored = await self._write(LeaseStep.RENEW, nobody)
                except (Conflict, NotFound):  # perhaps by a renewal of this replica's whose answer was lost
                    await self._read()
                    continue
                self._state.seen(stored, self._clock.monotonic())

    async def _claim(self) -> bool:
        for _ in range(2):
            step = self._state.next_step(self._clock.monotonic())
            if step is LeaseStep.WAIT:
                return False
            started = self._clock.monotonic()
            try:
                stored = await self._write(step, self._state.wanted())
            except (Conflict, NotFound):
                await self._read()
                continue
            self._state.written(stored, started, self._clock.monotonic())
            break
        return self.valid()

    async def _read(self) -> None:
        try:
            record = _record(await self._connection.get(self._path, within=self._within))
        except NotFound:
            record = None
        self._state.seen(record, self._clock.monotonic())

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
            answer = await self._connection.post(self._collection, msgspec.json.encode(body), within=self._within)
        else:
            # the version makes the patch a conflict if anybody has written since
            body["metadata"]["resourceVersion"] = record.resource_version
            answer = await self._connection.patch(self._path, msgspec.json.encode(body), within=self._within)
        return _record(answer)


def _record(answer: bytes) -> LeaseRecord:
    try:
        lease = decode(answer, _LEASE)
    except ConversionError as error:
        raise BadAnswer(f"this is no Lease: {error}") from error
    spec = lease.spec
    return LeaseRecord(
        resource_version=lease.metadata.resource_version,
        uid=lease.metadata.uid,
        holder=spec.holder_identity or "",
        duration=float(spec.lease_duration_seconds or 0),
        transitions=spec.lease_transitions or 0,
    )
