"""Passes GPUs and claims to container runtimes with the Container Device Interface (CDI).

NVIDIA's container toolkit describes the GPUs in a specification of the kind ``nvidia.com/gpu``. The
service ``nvidia-cdi-refresh`` or ``nvidia-ctk cdi generate`` writes this file. The agent only looks
up the names of the GPUs in it. A container whose runtime cannot resolve a device name is never
created, so the agent returns no name in case of doubt. The container then gets its GPUs by
``NVIDIA_VISIBLE_DEVICES``.

The agent writes one CDI file for each prepared claim. Its format is that of the CDI specification
0.5.0.
"""

import contextlib
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Final

import msgspec

from gputile.api.quantity import MIB
from gputile.node.gateway import kubelet_pb2 as pb
from gputile.support.files import read_whole, write_whole
from gputile.support.yaml_loader import DocumentError, load_document

CLAIM_KIND: Final = "gputile.io/claim"
NVIDIA_KIND: Final = "nvidia.com/gpu"
VERSION: Final = "0.5.0"
_CLAIM_PREFIX: Final = "gputile.io-claim-"
_MOST_BYTES = MIB  # of a file. NVIDIA's file for a machine with many GPUs has some 100 kB.


class _Device(msgspec.Struct):
    name: str


class _Spec(msgspec.Struct):
    kind: str
    devices: list[_Device]


def nvidia_devices(text: bytes) -> tuple[str, ...]:
    """Return the device names in a specification of NVIDIA's kind, which is JSON or YAML.

    The result is empty for other specifications and for invalid files.
    """
    try:
        spec = msgspec.convert(load_document(text), _Spec)
    except (DocumentError, msgspec.ValidationError):
        return ()
    return tuple(device.name for device in spec.devices) if spec.kind == NVIDIA_KIND else ()


def cdi_name(uid: str) -> str:
    """Return the name of the CDI device that adds a claim's limits to containers."""
    return f"{CLAIM_KIND}={uid}"


def cdi_file(uid: str, response: pb.ContainerAllocateResponse) -> bytes:
    """Return a claim's CDI file, with the environment and the mounts of a response."""
    edits = {
        "env": [f"{name}={value}" for name, value in response.envs.items()],
        "mounts": [
            {
                "hostPath": each.host_path,
                "containerPath": each.container_path,
                "options": ["rbind", "rprivate", "ro" if each.read_only else "rw"],
            }
            for each in response.mounts
        ],
    }
    device = {"name": uid, "containerEdits": edits}
    return msgspec.json.encode({"cdiVersion": VERSION, "kind": CLAIM_KIND, "devices": [device]})


class CdiFiles:
    """A directory of CDI specifications."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        # The names in each file, by the file's path, inode, modification time and size
        self._read: dict[tuple[Path, int, int, int], tuple[str, ...]] = {}

    def devices(self, uuids: Collection[str]) -> tuple[str, ...]:
        """Return the CDI names of GPUs or MIG instances, or () if one of them has no usable name.

        Files that have not changed are not read again. A runtime ignores a device that several
        files of a directory define.
        """
        read = {}
        for path in (*self._directory.glob("*.json"), *self._directory.glob("*.yaml")):
            if path.name.startswith(_CLAIM_PREFIX):
                continue
            with contextlib.suppress(OSError):  # a file of another program may be unreadable
                found = path.stat()
                key = (path, found.st_ino, found.st_mtime_ns, found.st_size)
                if (names := self._read.get(key)) is None:
                    names = nvidia_devices(read_whole(path, _MOST_BYTES))
                read[key] = names
        self._read = read
        times = Counter(name for names in read.values() for name in names)
        if any(times[uuid] != 1 for uuid in uuids):
            return ()
        return tuple(f"{NVIDIA_KIND}={uuid}" for uuid in uuids)

    def write_claim(self, uid: str, response: pb.ContainerAllocateResponse) -> None:
        """Write a claim's file, unless it is up to date. Raises OSError if this fails."""
        path, content = self._claim_file(uid), cdi_file(uid, response)
        with contextlib.suppress(OSError):
            if read_whole(path, _MOST_BYTES) == content:
                return
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content)

    def remove_claim(self, uid: str) -> None:
        self._claim_file(uid).unlink(missing_ok=True)

    def _claim_file(self, uid: str) -> Path:
        return self._directory / f"{_CLAIM_PREFIX}{uid}.json"
