"""Writes the node's CDI specification, and reads those that are there."""

import logging
from collections.abc import Iterable
from pathlib import Path

import msgspec

from gputile.api.quantity import MIB
from gputile.node.agent.decisions.answers.cdi import (
    FILE_NAME,
    LIBRARIES,
    MIG_MINORS,
    SHARED_NODES,
    choose,
    names,
    read_capabilities,
    specification,
)
from gputile.node.nvml.probe import ProbedMachine
from gputile.support.files import read_whole, write_whole

log = logging.getLogger(__name__)

MOST_BYTES = 16 * MIB  # of one file; those of machines with many GPUs have some ten thousand
LIBRARY_DIRECTORIES = ("usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib")


class CdiFiles:
    """One CDI directory. ``root`` is where the host's /usr and /proc/driver are seen.

    Device nodes are looked for in ``devices``, the agent's own /dev: it has those that the host has for all GPUs.
    """

    def __init__(self, directory: Path, root: Path = Path("/"), devices: Path = Path("/dev")) -> None:
        self._directory = directory
        self._root = root
        self._devices = devices
        self._known: frozenset[str] = frozenset()

    def refresh(self, machine: ProbedMachine) -> None:
        nodes = [node for node in SHARED_NODES if (self._devices / Path(node).name).exists()]
        libraries, capabilities = self._libraries(machine.driver), self._capabilities()
        spec = msgspec.json.encode(specification(machine, nodes, libraries, capabilities))
        path, found = self._directory / FILE_NAME, frozenset[str]()
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            if _content(path) != spec:
                write_whole(path, spec)
            for file in sorted(self._directory.glob("*.json")):
                content = _content(file)  # another's may be none that can be read, or too long
                found |= names(content) if content is not None else frozenset()
        except OSError as error:
            log.error("CDI directory %s: %s; containers get their devices by environment only", self._directory, error)
        self._known = found

    def devices(self, uuids: Iterable[str]) -> tuple[str, ...]:
        """Return the qualified names of devices; empty where the runtime would not know one of them."""
        return choose(uuids, self._known)

    def _capabilities(self) -> dict[str, int]:
        try:
            return read_capabilities((self._root / MIG_MINORS[1:]).read_text(errors="replace"))
        except OSError:
            return {}

    def _libraries(self, driver: str) -> list[str]:
        """Return the driver's libraries as the host names them; the first directory that has a library wins."""
        found = []
        for library in LIBRARIES:
            paths = (f"{directory}/{library}.so.{driver}" for directory in LIBRARY_DIRECTORIES)
            path = next((p for p in paths if driver and (self._root / p).exists()), None)
            if path is not None:
                found.append(f"/{path}")
        return found


def _content(file: Path) -> bytes | None:
    try:
        return read_whole(file, MOST_BYTES)
    except OSError:
        return None
