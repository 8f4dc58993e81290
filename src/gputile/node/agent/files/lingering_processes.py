"""Ends processes that outlive their pods, after a deletion by force, while the next pod starts.

Processes that use a GPU are known by their containers' files (``UsageFiles.is_held``), without a look at processes of
the host. The wait is bounded: a process that has got a descriptor of such a file from a container that is gone would
otherwise keep others off the GPU for ever.
"""

import time
from collections.abc import Collection
from typing import Final

from gputile.node.agent.files.allocation_files import NodeFiles

LONGEST_S: Final = 120.0


class LingeringProcesses:
    """The GPUs that processes of pods that are gone still use."""

    def __init__(self, store: NodeFiles) -> None:
        self._store = store
        self._since: dict[str, float] = {}

    def on(self, uuids: Collection[str], present: Collection[str]) -> str:
        """Return which pod that is gone still has processes on one of the GPUs, "" for none worth waiting for.

        ``present`` are the allocation directories of the pods that are not gone.
        """
        now, found, held = time.monotonic(), "", set()
        for name in self._store.usage.names():
            if name in present or not self._store.usage.is_held(name):
                continue
            held.add(name)
            limits = self._store.limits(name)
            since = self._since.setdefault(name, now)
            if limits is not None and now - since < LONGEST_S and any(gpu.uuid in uuids for gpu in limits.gpus):
                found = f"{limits.namespace}/{limits.pod}"
        self._since = {name: since for name, since in self._since.items() if name in held}
        return found
