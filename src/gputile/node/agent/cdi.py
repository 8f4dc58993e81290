"""Describes the GPUs as CDI devices, for container runtimes with the Container Device Interface.

A runtime with CDI needs no NVIDIA runtime class. It does not trust the environment variables of an
image, so a container gets exactly the devices that the kubelet has allocated. NVIDIA's own
specification (``nvidia-ctk cdi generate --format=json``) covers more of the driver, and takes
precedence. The format is that of the CDI specification 0.5.0.
"""

import contextlib
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from gputile.api.quantity import MIB
from gputile.node.gateway import kubelet_pb2 as pb
from gputile.node.nvml.probe import Mig, ProbedGpu, ProbedMachine
from gputile.support.files import read_whole, write_whole

log = logging.getLogger(__name__)

KIND: Final = "gputile.io/gpu"
CLAIM_KIND: Final = "gputile.io/claim"
NVIDIA_KIND: Final = "nvidia.com/gpu"  # nvidia-container-toolkit
FILE_NAME: Final = "gputile.io-gpu.json"
VERSION: Final = "0.5.0"
MIG_MINORS: Final = "/proc/driver/nvidia-caps/mig-minors"
SHARED_NODES: Final = (
    "/dev/nvidiactl",
    "/dev/nvidia-uvm",
    "/dev/nvidia-uvm-tools",
    "/dev/nvidia-modeset",
)
# The libraries of the driver that a CUDA program needs. Images contain other libraries.
LIBRARIES: Final = (
    "libcuda",
    "libcudadebugger",
    "libnvidia-ml",
    "libnvidia-nvvm",
    "libnvidia-ptxjitcompiler",
    "libnvidia-gpucomp",
    "libnvcuvid",
    "libnvidia-encode",
    "libnvidia-opencl",
)

# The names in CDI specification 0.5.0. Drivers before R470 have "/" in UUIDs of MIG instances.
_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")


def specification(
    machine: ProbedMachine,
    nodes: Iterable[str],
    libraries: Sequence[str],
    capabilities: Mapping[str, int],
) -> dict[str, Any]:
    """Return the CDI specification of the machine's GPUs and MIG instances.

    ``nodes`` are the device nodes in ``SHARED_NODES`` that exist. ``libraries`` are the host's
    paths of the driver's libraries. ``capabilities`` is the result of ``read_capabilities``.
    """
    edits: dict[str, Any] = {"deviceNodes": [{"path": node} for node in nodes]}
    if libraries:
        edits["mounts"] = [
            {"hostPath": path, "containerPath": seen, "options": ["ro", "nosuid", "nodev", "bind"]}
            for path in libraries
            for seen in (path, _soname(path))
        ]
    return {
        "cdiVersion": VERSION,
        "kind": KIND,
        "devices": [
            device
            for gpu in machine.gpus
            if gpu.minor >= 0
            for device in _devices(gpu, capabilities)
        ],
        "containerEdits": edits,
    }


class _Device(msgspec.Struct):
    name: str


class _Spec(msgspec.Struct):
    kind: str
    devices: list[_Device]


def names(text: bytes) -> frozenset[str]:
    """Return the qualified names of the devices in a specification, or none if it is invalid."""
    try:
        spec = msgspec.json.decode(text, type=_Spec)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return frozenset()
    return frozenset(f"{spec.kind}={device.name}" for device in spec.devices)


def choose(uuids: Iterable[str], known: frozenset[str]) -> tuple[str, ...]:
    """Return the qualified names of all devices, or () if a device has no known name.

    NVIDIA's name of a device takes precedence.
    """
    found: list[str] = []
    for uuid in uuids:
        name = next((n for kind in (NVIDIA_KIND, KIND) if (n := f"{kind}={uuid}") in known), None)
        if name is None:
            return ()
        found.append(name)
    return tuple(found)


def read_capabilities(text: str) -> dict[str, int]:
    """Return the minor numbers of the MIG capabilities by name, such as ``gpu0/gi3/ci0/access``.

    ``text`` is the content of ``/proc/driver/nvidia-caps/mig-minors``, which names a GPU by its
    minor number (NVIDIA's MIG User Guide, "Device Nodes and Capabilities"). Other lines are
    ignored.
    """
    found = {}
    for line in text.splitlines():
        name, _, minor = line.strip().rpartition(" ")
        if name and minor.isascii() and minor.isdecimal():
            found[name] = int(minor)
    return found


def _devices(gpu: ProbedGpu, capabilities: Mapping[str, int]) -> Iterator[Mapping[str, Any]]:
    """Yield the device of the GPU, or the devices of its instances if the GPU is in MIG mode."""
    node = f"/dev/nvidia{gpu.minor}"
    if gpu.mig is not Mig.ON:
        yield _device(gpu.uuid, node)
    for instance in gpu.instances:
        whole = f"gpu{gpu.minor}/gi{instance.gi}"
        minors = [
            capabilities.get(f"{place}/access") for place in (whole, f"{whole}/ci{instance.ci}")
        ]
        if None not in minors and _NAME.fullmatch(instance.uuid):
            yield _device(
                instance.uuid, node, *(f"/dev/nvidia-caps/nvidia-cap{minor}" for minor in minors)
            )


def _device(name: str, *nodes: str) -> Mapping[str, Any]:
    return {"name": name, "containerEdits": {"deviceNodes": [{"path": node} for node in nodes]}}


def _soname(path: str) -> str:
    """Return the name that programs load: libcuda.so.1 for libcuda.so.570.133.20."""
    directory, _, file = path.rpartition("/")
    stem, _, _ = file.partition(".so.")
    return f"{directory}/{stem}.so.1"


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


MOST_BYTES = 16 * MIB  # of a file. A machine with many GPUs needs some ten thousand bytes.
READABLE: Final = 0o644
LIBRARY_DIRECTORIES = (
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib",
)


@dataclass
class CdiFiles:
    """A directory of CDI specifications.

    ``root`` is the directory with the host's /usr and /proc/driver. ``nodes`` is the directory of
    the device nodes, which is the agent's own /dev with the nodes of all GPUs.
    """

    directory: Path
    root: Path = Path("/")
    nodes: Path = Path("/dev")
    _known: frozenset[str] = frozenset()

    def refresh(self, machine: ProbedMachine) -> None:
        nodes = [node for node in SHARED_NODES if (self.nodes / Path(node).name).exists()]
        capabilities = {}
        with contextlib.suppress(OSError):
            text = (self.root / MIG_MINORS[1:]).read_text(errors="replace")
            capabilities = read_capabilities(text)
        libraries = self._libraries(machine.driver)
        spec = msgspec.json.encode(specification(machine, nodes, libraries, capabilities))
        found = frozenset[str]()
        try:
            write_changed(self.directory / FILE_NAME, spec, READABLE)
            for file in sorted(self.directory.glob("*.json")):
                with contextlib.suppress(OSError):  # a file of another program may be unreadable
                    found |= names(read_whole(file, MOST_BYTES))
        except OSError as error:
            log.error(
                "CDI directory %s: %s. Containers get their devices only by environment variables",
                self.directory,
                error,
            )
        self._known = found

    def devices(self, uuids: Iterable[str]) -> tuple[str, ...]:
        """Return the qualified names of devices, or () if the runtime does not know one of them."""
        return choose(uuids, self._known)

    def claim_file(self, uid: str) -> Path:
        return self.directory / f"gputile.io-claim-{uid}.json"

    def _libraries(self, driver: str) -> list[str]:
        """Return the driver's libraries on the host, each from the first directory that has it."""
        found = []
        for library in LIBRARIES:
            paths = (f"{directory}/{library}.so.{driver}" for directory in LIBRARY_DIRECTORIES)
            path = next((p for p in paths if driver and (self.root / p).exists()), None)
            if path is not None:
                found.append(f"/{path}")
        return found


def write_changed(path: Path, content: bytes, mode: int) -> None:
    """Write a file, unless it already has this content. Raises OSError if this fails."""
    with contextlib.suppress(OSError):
        if read_whole(path, MOST_BYTES) == content:
            return
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, content, mode)
