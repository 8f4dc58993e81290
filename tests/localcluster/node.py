"""A real node for a control plane of the tests: kubelet, containerd and runc on this machine, and nothing left behind.

Everything runs in namespaces of its own (``nodespace``), so that the machine's own kubelet paths, mounts and processes
are untouched, and several nodes can run on one machine. It needs root and Linux.
"""

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tests.fakes import cuda, nvml
from tests.fakes.nvml import FakeMachine
from tests.localcluster import nodespace
from tests.localcluster.client import ApiError
from tests.localcluster.controlplane import ControlPlane
from tests.localcluster.gomodule import ComponentMissing
from tests.localcluster.images import write_images
from tests.localcluster.machine import Scratch, add_address, free_ports, make_cgroups, remove_address, remove_cgroups
from tests.localcluster.nodeprograms import (
    STATE,
    STATIC_PODS,
    KubeletIdentity,
    containerd_answers,
    containerd_command,
    import_images,
    kubelet_command,
    tag_image,
)
from tests.localcluster.nosuid import nosuid_directory
from tests.localcluster.nvidiaruntime import DRIVER_STATE
from tests.localcluster.podnetwork import PodNetwork
from tests.localcluster.processes import PATIENCE_S, Process

PREFIX = "gputile-node-"


@dataclass(frozen=True, kw_only=True)
class Outfit:
    """An outfit; the default one is that of a node whose pods use the machine's network, and that has no GPUs.

    ``network`` gives each pod an address. ``machine`` writes a machine with GPUs to a path; the container runtime hands
    them to containers as NVIDIA's does. ``images`` are archives to load. ``kubelet`` is more of its configuration.
    ``places`` is how many containers have a file system of their own for what they write.
    """

    network: PodNetwork | None = None
    machine: Callable[[Path], FakeMachine] | None = None
    images: tuple[Path, ...] = ()
    kubelet: Mapping[str, Any] = field(default_factory=dict)
    places: int = 0


def write_driver(directory: Path, machine: Callable[[Path], nvml.FakeMachine]) -> tuple[Path, nvml.FakeMachine]:
    """Make a machine's GPUs in ``directory``; return the file for ``nvidiaruntime``, and the machine."""
    state = directory / "driver"
    state.mkdir()
    made = machine(state / "machine")
    gpus = cuda.FakeGpus(state, [gpu.mib for gpu in made.gpus])
    made.rename(gpus.uuids)
    gpus.path.chmod(0o666)  # a container of any user has the driver's devices
    description = {
        "libraries": {"utility": [str(nvml.library())], "compute": [str(cuda.library())]},
        "state": str(state),
        "environment": {
            nvml.STATE_VARIABLE: f"{DRIVER_STATE}/machine",
            cuda.STATE_VARIABLE: f"{DRIVER_STATE}/{gpus.path.name}",
        },
    }
    path = directory / "driver.json"
    path.write_text(json.dumps(description))
    return path, made


ORDINARY = Outfit()


class RealNode:
    """A node named ``name`` of ``plane``, with ``labels``, for as long as the ``with`` block lasts.

    ``kubelet`` and ``containerd`` are its processes: either may be killed and started again at any time, while the
    containers run on. ``programs`` are those of ``binaries.NODE``. ``usage`` is for what containers write.
    ``machine`` has its GPUs, where the outfit has any.
    """

    machine: FakeMachine

    def __init__(
        self,
        plane: ControlPlane,
        programs: Mapping[str, Path],
        name: str,
        labels: Mapping[str, str] | None = None,
        outfit: Outfit = ORDINARY,
    ) -> None:
        self.plane = plane
        self.name = name
        self._programs = programs
        self._labels = labels or {}
        self._outfit = outfit
        self._driver: Path | None = None
        self._started: list[Process] = []

    def __enter__(self) -> Self:
        if os.geteuid() != 0:
            raise ComponentMissing("a real kubelet needs root")
        self._scratch = Scratch(PREFIX, _undo)
        self.directory = self._scratch.path
        self.directory.chmod(0o711)  # root of a pod's own user namespace passes it to the pod's files
        try:
            self._start()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    @property
    def device_plugins(self) -> Path:
        """The directory of the kubelet's device plugins, as seen from outside."""
        return self.directory / "kubelet" / "device-plugins"

    @property
    def pod_resources(self) -> Path:
        """The socket of the kubelet's PodResources service, as seen from outside."""
        return self.directory / "kubelet" / "pod-resources" / "kubelet.sock"

    def output(self, namespace: str, pod: str, uid: str, container: str) -> str:
        """Return what a container has written, all its starts one after the other: what ``kubectl logs`` reads."""
        directory = self.directory / "log" / "pods" / f"{namespace}_{pod}_{uid}" / container
        lines: list[str] = []
        for file in sorted(directory.glob("*.log")):
            with contextlib.suppress(FileNotFoundError):  # the kubelet removes those of starts long ago
                lines += file.read_text().splitlines()
        return "\n".join(line.split(" ", 3)[3] for line in lines if line.count(" ") >= 3)  # time, stream, flag, text

    def tag_image(self, reference: str, other: str) -> None:
        """Give an image that the node has another name too."""
        tag_image(self._programs, self.directory, reference, other)

    def put_static_pod(self, name: str, body: Mapping[str, Any] | None) -> None:
        """Give the kubelet a static pod as a file; None takes it away."""
        path = self.directory / STATIC_PODS / f"{name}.json"
        if body is None:
            path.unlink()
            return
        unfinished = self.directory / f"{name}.json"
        unfinished.write_text(json.dumps(body))
        unfinished.rename(path)

    def object(self) -> dict[str, Any]:
        """Return the node as the API server has it."""
        found: dict[str, Any] = self.plane.api.get(f"/api/v1/nodes/{self.name}")
        return found

    def is_ready(self) -> bool:
        """Return whether the kubelet says that the node is ready."""
        try:
            conditions = self.object()["status"].get("conditions", [])
        except ApiError:
            return False
        return any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions)

    def _start(self) -> None:
        try:
            make_cgroups(self.directory.name)
            address = add_address(_label(self.directory))
        except OSError as error:
            raise ComponentMissing(f"this machine does not let a kubelet run: {error}") from error
        # A mount that is made later is not seen in the node's namespaces.
        self.usage = nosuid_directory(self._outfit.places)
        if self._outfit.machine is not None:
            self._driver, self.machine = write_driver(self.directory, self._outfit.machine)
        self._identity = KubeletIdentity(
            self.name,
            address,
            free_ports(1)[0],
            self.plane.kubeconfig(f"system:node:{self.name}", ["system:nodes"]),
        )
        images = write_images(self.directory)
        self._boot(images, *self._outfit.images)
        # The controller-manager removes the taint of a new node some time after it is ready.
        patch = {"metadata": {"labels": self._labels}, "spec": {"taints": None}}
        self.plane.api.patch(f"/api/v1/nodes/{self.name}", patch)

    def reboot(self) -> None:
        """Kill everything at once as a power cut does, and boot: what a node keeps on its disk is all that stays."""
        for process in reversed(self._started):
            process.kill()
        self._started.clear()
        remove_cgroups(self.directory.name)
        make_cgroups(self.directory.name)
        shutil.rmtree(self.directory / STATE)  # in memory, as /run is
        (self.directory / nodespace.PID_FILE).unlink()
        self._boot()

    def _boot(self, *images: Path) -> None:
        programs, directory = self._programs, self.directory
        space = self._run("namespaces", [sys.executable, "-I", "-S", nodespace.__file__, directory])
        space.wait_ready((directory / nodespace.PID_FILE).exists)
        inside = nodespace.entering(directory)
        containerd = containerd_command(programs, directory, self._outfit.network, self._driver)
        self.containerd = self._run("containerd", [*inside, *containerd])
        self.containerd.wait_ready(lambda: containerd_answers(programs, directory), interval=0.2)
        for archive in images:
            import_images(programs, directory, archive)
        kubelet = kubelet_command(programs["kubelet"], directory, self._identity, self.plane.ca, self._outfit.kubelet)
        self.kubelet = self._run("kubelet", [*inside, *kubelet])
        self.kubelet.wait_ready(self.is_ready, PATIENCE_S, interval=0.1)

    def _run(self, name: str, command: list[str | Path]) -> Process:
        process = Process(name, command, self.directory / f"{name}.log")
        process.start()
        self._started.append(process)
        return process

    def _close(self) -> None:
        """Kill everything, the namespace last, and take back what was done to the machine and the cluster."""
        for process in reversed(self._started):
            process.kill()
        try:
            self.plane.api.delete(f"/api/v1/nodes/{self.name}")
        except ApiError as error:
            if error.status != 404:
                raise
        finally:
            self._scratch.remove()


def _undo(directory: Path) -> None:
    remove_cgroups(directory.name)
    remove_address(_label(directory))


def _label(directory: Path) -> str:
    return directory.name.removeprefix(PREFIX)
