"""A real node for a control plane of the tests: kubelet, containerd and runc on this machine, and nothing left behind.

Everything runs in namespaces of its own (``nodespace``), so that the machine's own kubelet paths, mounts and processes
are untouched, and several nodes can run on one machine. It needs root and Linux.
"""

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.fakes.nvml import FakeMachine
from tests.localcluster import nodespace
from tests.localcluster.client import ApiError
from tests.localcluster.containerd import (
    STATE,
    containerd_answers,
    containerd_command,
    import_images,
    tag_image,
)
from tests.localcluster.controlplane import ControlPlane
from tests.localcluster.images import write_images
from tests.localcluster.nodeaddress import add_address, remove_address
from tests.localcluster.nodecgroups import make_cgroups, remove_cgroups
from tests.localcluster.nodedriver import write_driver
from tests.localcluster.nodekubelet import STATIC_PODS, KubeletIdentity, kubelet_command
from tests.localcluster.nosuid import nosuid_directory
from tests.localcluster.outfit import Outfit
from tests.localcluster.ports import free_ports
from tests.localcluster.processes import PATIENCE_S, Process
from tests.localcluster.scratch import Scratch
from tests.localcluster.toolchain import ComponentMissing

PREFIX = "gputile-node-"
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
