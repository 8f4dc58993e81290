"""Keeps one replica active, by a coordination.k8s.io/v1 Lease.

The lease follows the traffic: nothing here renews by itself. A replica that is asked to schedule calls
``LeaseHolder.acquire`` and then ``LeaseHolder.renew`` as long as it is asked; a standby calls ``LeaseHolder.observe``
now and then, so that it knows at once whether the holder is alive when it is needed.
"""

import asyncio
from dataclasses import replace
from typing import Any

import msgspec

from gputile.api.conversion import ConversionError, decode
from gputile.api.lease import Lease
from gputile.api.timestamps import micro_timestamp_of
from gputile.api.well_known import LEADER_NOTE_ANNOTATION
from gputile.kube.clock import SYSTEM_CLOCK, Clock
from gputile.kube.errors import BadAnswer, Conflict, NotFound
from gputile.kube.leases.lease_state import RELEASED_S, LeaseRecord, LeaseState, LeaseStep
from gputile.kube.transport.connection import Connection

_LEASE = msgspec.json.Decoder(Lease)


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
    def note(self) -> str:
        """What a holder has left for those after it, "" where none has."""
        return self._state.record.note if self._state.record else ""

    def leave(self, note: str) -> None:
        """Write ``note`` into the lease with the next renewal or release, while this replica holds it."""
        self._state.leave(note)

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
                nobody = replace(record, holder="", duration=RELEASED_S, note=self._state.note)
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
        if record.note != self.note:
            body["metadata"]["annotations"] = {LEADER_NOTE_ANNOTATION: record.note}
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
        note=lease.metadata.annotations.get(LEADER_NOTE_ANNOTATION, ""),
    )
