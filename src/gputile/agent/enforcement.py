"""What an isolated container gets mounted beside its allocation: the library, what loads it, and where it counts."""

from pathlib import Path
from typing import Final

from gputile.api.wellknown import Mode
from gputile.gateway.protocols import deviceplugin_v1beta1_pb2 as pb
from gputile.isolation.library import (
    CONTAINER_LIBRARY,
    CONTAINER_PRELOAD,
    CONTAINER_USAGE,
    Installed,
    LibraryMissing,
    install,
)
from gputile.isolation.limits import USAGE

ISOLATED: Final = frozenset({Mode.CGPU, Mode.CORE_MEM})  # by the library; mps is isolated by MPS itself
LIBRARY_DIRECTORY: Final = "library"


class Enforcement:
    """The library on this node. ``state`` is the agent's directory, ``host_state`` what the host calls it."""

    def __init__(self, state: Path, host_state: Path) -> None:
        self._state = state
        self._host_state = host_state
        self._installed: Installed | None = None

    def problem(self, mode: Mode) -> str:
        """Return why a container must not start in a mode: it would not be isolated; "" if it may."""
        if mode in ISOLATED:
            try:
                self._install()
            except (LibraryMissing, OSError) as error:
                return str(error)
        return ""

    def mounts(self, mode: Mode, host_allocation: Path) -> list[pb.Mount]:
        """Return an isolated container's mounts beside its allocation's directory, none where ``problem`` says why."""
        if self.problem(mode) or mode not in ISOLATED:
            return []
        installed = self._install()
        library, preload = (
            self._host_state / path.relative_to(self._state) for path in (installed.library, installed.preload)
        )
        return [
            pb.Mount(container_path=CONTAINER_LIBRARY, host_path=str(library), read_only=True),
            pb.Mount(container_path=CONTAINER_PRELOAD, host_path=str(preload), read_only=True),
            pb.Mount(container_path=CONTAINER_USAGE, host_path=str(host_allocation / USAGE)),
        ]

    def _install(self) -> Installed:
        if self._installed is None or not self._installed.preload.exists():
            self._installed = install(self._state / LIBRARY_DIRECTORY)
        return self._installed
