"""Lists what an isolated container gets mounted beside its allocation.

These are the library, what loads it, and where it counts.

The kubelet keeps the answer to ``Allocate`` as long as the pod is there, and starts its containers with that whatever
has become of the node meanwhile. So before each start the agent checks that the answer has the library, and that the
files that it names have the right content and can be loaded: the container runtime makes a directory where a file is
missing, and the loader ignores that, as it ignores a library on a file system that is mounted ``noexec``.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gputile.api.well_known import Mode
from gputile.node.agent.device_table import CONTAINER_DIRECTORY
from gputile.node.agent.files.node_mounts import LIBRARY_DIRECTORY
from gputile.node.agent.files.usage_files import UsageFiles
from gputile.node.agent.node_config import LIBRARY_MODES
from gputile.node.gateway.protocols import deviceplugin_v1beta1_pb2 as pb
from gputile.node.isolation.library import (
    CONTAINER_LIBRARY,
    CONTAINER_NIX_PRELOAD,
    CONTAINER_PRELOAD,
    CONTAINER_USAGE,
    Installed,
    LibraryMissing,
    LibraryNotLoadable,
    install,
    library_path,
    must_be_loadable,
    place_in,
    place_named,
)

log = logging.getLogger(__name__)

ANEW: Final = "delete the pod, so that it is admitted again"
_NEEDED: Final = (CONTAINER_DIRECTORY, CONTAINER_LIBRARY, CONTAINER_PRELOAD, CONTAINER_USAGE)


class NotIsolated(Exception):
    """A container must not start: it would not be held to its limits. The text says why, and what to do."""


class IsolationMounts:
    """The library on this node. ``state`` is the agent's directory, ``host_state`` what the host calls it."""

    def __init__(self, state: Path, host_state: Path, usage: UsageFiles) -> None:
        self._state = state
        self._host_state = host_state
        self._usage = usage
        self._content = b""
        self._own: Installed | None = None

    def mounts(self, mode: Mode, directory: str) -> list[pb.Mount]:
        """Return an isolated container's mounts beside its allocation's ``directory``; none where there is no library.

        Their files need not be there yet: ``prepare`` sees to that.
        """
        if mode not in LIBRARY_MODES:
            return []
        try:
            installed = self._place()
        except (LibraryMissing, OSError) as error:
            log.error("%s gets no library, and will not be started: %s", directory, error)
            return []
        library, preload = (
            str(self._host_state / path.relative_to(self._state)) for path in (installed.library, installed.preload)
        )
        return [
            pb.Mount(container_path=CONTAINER_LIBRARY, host_path=library, read_only=True),
            pb.Mount(container_path=CONTAINER_PRELOAD, host_path=preload, read_only=True),
            pb.Mount(container_path=CONTAINER_NIX_PRELOAD, host_path=preload, read_only=True),
            pb.Mount(container_path=CONTAINER_USAGE, host_path=str(self._usage.path(directory))),
        ]

    def prepare(self, mode: Mode, directory: str, mounts: Mapping[str, str] | None) -> Path | None:
        """Have what a container mounts at its place; return the file to count in, None where it is not isolated.

        ``mounts`` are the host's paths by the container's, as they were answered; None where nobody knows that.

        Raises:
            NotIsolated: it must not start.
        """
        if mode not in LIBRARY_MODES:
            return None
        if mounts is None:
            raise NotIsolated(f"nobody knows what it was told to mount: {ANEW}")
        lacking = [path for path in _NEEDED if path not in mounts]
        if lacking:
            raise NotIsolated(
                f"it was admitted while the node could not isolate it, without {', '.join(lacking)}: {ANEW}"
            )
        library, preload = (self._seen(mounts[path]) for path in (CONTAINER_LIBRARY, CONTAINER_PRELOAD))
        allocation, usage = self._seen(mounts[CONTAINER_DIRECTORY]), self._seen(mounts[CONTAINER_USAGE])
        installed = Installed(library, preload)
        if installed != place_named(self._state / LIBRARY_DIRECTORY, library.parent.name):
            raise NotIsolated(
                f"it was told to mount {library} and {preload}, which are no places of the library: {ANEW}"
            )
        own = self._state / "allocations" / directory
        if allocation != own or usage != self._usage.path(directory):
            raise NotIsolated(f"it was told to mount {allocation} and {usage}, which are not its own: {ANEW}")
        try:
            self._place()
            install(installed, self._content)
            must_be_loadable(installed)
        except (LibraryMissing, LibraryNotLoadable, OSError) as error:
            raise NotIsolated(str(error)) from error
        if (problem := self._usage.problem()) is not None:
            raise NotIsolated(problem)
        return usage

    def _seen(self, host_path: str) -> Path:
        path = Path(host_path)
        return self._state / path.relative_to(self._host_state) if path.is_relative_to(self._host_state) else path

    def _place(self) -> Installed:
        if self._own is None:
            self._content = library_path().read_bytes()
            self._own = place_in(self._state / LIBRARY_DIRECTORY, self._content)
        return self._own
