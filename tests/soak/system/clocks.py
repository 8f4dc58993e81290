"""Clocks that jump, for single processes: a library before libc (clock.c), and a file that it reads.

Only the time of day jumps (CLOCK_REALTIME), as when a machine's clock is set; the monotonic clock goes on. That of the
machine is never touched.
"""

import hashlib
import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.localcluster.gomodule import ComponentMissing

_SOURCE = Path(__file__).with_name("clock.c")


class Clocks:
    """The clocks of components by name, each a file in ``directory``."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._library = directory / f"clock-{hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:16]}.so"
        flags = ["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
        try:
            subprocess.run(["cc", *flags, "-o", self._library, _SOURCE, "-ldl", "-lpthread"], check=True)
        except FileNotFoundError as error:
            raise ComponentMissing("no C compiler (cc), which the clocks that jump are made with") from error

    def environment(self, name: str) -> Mapping[str, str]:
        """Return what gives a component a clock of its own, which is right at first."""
        self.set(name, 0)
        return {"LD_PRELOAD": str(self._library), "GPUTILE_SOAK_CLOCK": str(self._file(name))}

    def set(self, name: str, seconds: int) -> None:
        """Put a component's clock so far ahead of the right time, or back."""
        file = self._file(name)
        if not file.exists():
            file.write_bytes(struct.pack("@l", 0))
        with file.open("r+b") as mapped:
            mapped.write(struct.pack("@l", seconds))

    def _file(self, name: str) -> Path:
        return self._directory / f"{name}.clock"
