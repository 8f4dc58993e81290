"""Executes instructions in their order: on files, on processes, and with the kubelet."""

import logging
from collections.abc import Iterable

from gputile.node.agent.arbiter_process import ArbiterProcess
from gputile.node.agent.decisions.instructions import (
    AdvertiseDevices,
    Instruction,
    RemoveOthers,
    RunDaemons,
    SaveCheckpoint,
    ShareTime,
    WriteCdi,
)
from gputile.node.agent.files.cdi_files import CdiFiles
from gputile.node.agent.files.records import Records
from gputile.node.agent.kubelet import KubeletLink
from gputile.node.agent.mps import MpsDaemons
from gputile.node.agent.state.allocation_state import AllocationState

log = logging.getLogger(__name__)


class Executor:
    """Executes what was decided on ``state``. Containers get their devices without CDI where ``cdi`` is None."""

    def __init__(
        self,
        state: AllocationState,
        records: Records,
        kubelet: KubeletLink,
        mps: MpsDaemons,
        arbiter: ArbiterProcess,
        cdi: CdiFiles | None,
    ) -> None:
        self._state = state
        self._records = records
        self._kubelet = kubelet
        self._mps = mps
        self._arbiter = arbiter
        self._cdi = cdi

    def execute(self, instructions: Iterable[Instruction]) -> None:
        """Execute one instruction after the other.

        Raises:
            OSError: a file cannot be written.
        """
        for instruction in instructions:
            match instruction:
                case RunDaemons(sets):
                    self._mps.want(sets)
                case WriteCdi(machine):
                    if self._cdi is not None:
                        self._cdi.refresh(machine)
                case AdvertiseDevices(devices):
                    self._kubelet.advertise(devices)
                case SaveCheckpoint():
                    try:
                        self._records.save(self._state)
                    except OSError as error:
                        self._state.advertised.record_checkpoint(written=False)
                        log.error("the checkpoint cannot be written, and is tried again: %s", error)
                case ShareTime():
                    self._arbiter.refresh()
                case RemoveOthers(directories, pods):
                    self._records.store.keep_only(directories, pods)
                    self._state.device_table.see_started(self._records.store.started())
