"""Where the library of native/ is, and how it gets into a container.

It is loaded by /etc/ld.so.preload, a read-only mount: the dynamic loader reads that file for every program of the
container, whatever its environment says, and without CAP_SYS_ADMIN nobody inside can take the mount away. The
variable LD_PRELOAD would be gone with the first `env -i`.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gputile.files import write_whole

NAME: Final = "libgputile-cuda.so"
CONTAINER_LIBRARY: Final = f"/etc/gputile/{NAME}"
CONTAINER_PRELOAD: Final = "/etc/ld.so.preload"  # ld.so(8)
CONTAINER_USAGE: Final = "/etc/gputile/usage"  # native/gate.c
_PRELOAD = "ld.so.preload"


class LibraryMissing(RuntimeError):
    """This install of gputile has no library."""


@dataclass(frozen=True, slots=True)
class Installed:
    """The library on a node: the file itself, and the one that tells the loader to load it."""

    library: Path
    preload: Path


def library_path() -> Path:
    """Return the library of this install.

    Raises:
        LibraryMissing: gputile was installed without a C compiler.
    """
    path = Path(__file__).with_name(NAME)
    if not path.exists():
        raise LibraryMissing(
            f"this gputile has no {NAME}, so it cannot isolate GPUs: install it from a wheel for this machine's "
            "processor, or with a C compiler"
        )
    return path


def install(directory: Path) -> Installed:
    """Put the library under ``directory``, named by its content, and return where.

    Each version has its own place: containers keep the one that they started with, and a new one changes none.

    Raises:
        LibraryMissing: there is none to install.
    """
    content = library_path().read_bytes()
    place = directory / hashlib.sha256(content).hexdigest()[:16]
    installed = Installed(place / NAME, place / _PRELOAD)
    place.mkdir(parents=True, exist_ok=True)
    for path, wanted in ((installed.library, content), (installed.preload, f"{CONTAINER_LIBRARY}\n".encode())):
        if not path.exists():
            write_whole(path, wanted, 0o755)
    return installed
