"""Lists and checks the mounts of isolated containers: the library, its preload file, the usage file.

The kubelet keeps the Allocate response for the life of the pod and starts its containers with it, even if the node has
changed meanwhile. So before each start the agent checks that the response contains the library, and that the files in
it have the right content and can be loaded. Otherwise a container could run without limits: if a file is missing, the
container runtime creates a directory in its place, and the dynamic loader ignores that, as it ignores a library on a
file system that is mounted ``noexec``.
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
from gputile.node.gateway import kubelet_pb2 as pb
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
    """A container must not start, since its limits would not be enforced. The text names the reason and the remedy."""


class IsolationMounts:
    """The library on this node. ``state`` is the agent's state directory, ``host_state`` its path on the host."""

    def __init__(self, state: Path, host_state: Path, usage: UsageFiles) -> None:
        self._state = state
        self._host_state = host_state
        self._usage = usage
        self._content = b""
        self._own: Installed | None = None

    def mounts(self, mode: Mode, directory: str) -> list[pb.Mount]:
        """Return an isolated container's mounts, apart from its allocation ``directory``; none if there is no library.

        The mounted files need not exist yet: ``prepare`` creates them.
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
        """Install the library at the paths that a container mounts; return its usage file, None if it is not isolated.

        ``mounts`` are the mounts in the container's Allocate response, the host's paths by the container's; None if
        they are unknown.

        Raises:
            NotIsolated: the container must not start.
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
