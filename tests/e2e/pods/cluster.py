"""A cluster on which gputile's components run as pods: two real nodes, a network for their pods, gputile's own image.

One node has GPUs, which its container runtime hands to containers as NVIDIA's does (``nvidiaruntime``); the other has
none. The images come out of archives, since no registry is reachable: gputile's as `make image` builds it, and
kube-scheduler's, under the name that the chart has for it, from the program that the tests build.
"""

import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fakes import nvml
from tests.localcluster import binaries
from tests.localcluster.binaries import skip_or_fail
from tests.localcluster.controlplane import ControlPlane, KubectlFailed
from tests.localcluster.gomodule import ComponentMissing
from tests.localcluster.gputile_image import REFERENCE, built_image
from tests.localcluster.images import write_program_image, write_sample_image
from tests.localcluster.machine import LOOPBACK
from tests.localcluster.node import Outfit, RealNode
from tests.localcluster.podnetwork import API_SERVER, PodNetwork
from tests.localcluster.processes import PATIENCE_S

GPUTILE_IMAGE = REFERENCE
SCHEDULER_IMAGE = "registry.k8s.io/kube-scheduler"
GPU_NODE, PLAIN_NODE = "with-gpus", "without-gpus"
# A kubelet looks for new configuration once a minute, and without the address of a DNS complains about each pod.
KUBELET = {"syncFrequency": "5s", "clusterDNS": [LOOPBACK], "clusterDomain": "cluster.local"}


@dataclass(frozen=True)
class PodCluster:
    """The cluster: its control plane, its network, and its nodes by name; ``images`` is what each node has loaded."""

    plane: ControlPlane
    network: PodNetwork
    nodes: dict[str, RealNode]
    images: tuple[Path, ...]
    programs: Mapping[str, Path]

    def start_node(self, name: str) -> None:
        """Start a node; the one with GPUs has four of 15 GiB, as the documents show them."""
        machine = nvml.MACHINES["fifteen"] if name == GPU_NODE else None
        outfit = Outfit(network=self.network, images=self.images, machine=machine, kubelet=KUBELET)
        node = RealNode(self.plane, self.programs, name, outfit=outfit)
        self.nodes[name] = node.__enter__()

    def lose_node(self, name: str) -> None:
        """End a node at once and for good, and delete it as a cloud provider does."""
        self.nodes.pop(name).__exit__(None, None, None)

    def close(self) -> None:
        """End all nodes."""
        for name in list(self.nodes):
            self.lose_node(name)

    def kubectl(self, *arguments: str, input: str | None = None) -> str:
        """Run kubectl as admin and return what it prints."""
        return self.plane.kubectl(*arguments, input=input)

    def pods(self, namespace: str, **labels: str) -> list[dict[str, Any]]:
        """Return the pods of a namespace with these labels."""
        selector = ",".join(f"{name}={value}" for name, value in labels.items())
        found = self.plane.api.get(f"/api/v1/namespaces/{namespace}/pods", labelSelector=selector)["items"]
        return [pod for pod in found if not pod["metadata"].get("deletionTimestamp")]

    def create(self, *objects: Mapping[str, Any]) -> None:
        """Create objects, as people do with kubectl; again, if a busy machine's webhook did not answer in time."""
        for body in objects:
            try:
                self.kubectl("create", "-f", "-", input=json.dumps(body))
            except KubectlFailed as error:
                if not re.search("Client.Timeout exceeded|context deadline exceeded", str(error)):
                    raise
                self.kubectl("create", "-f", "-", input=json.dumps(body))

    def clear(self) -> None:
        """Delete what is in the default namespace, and wait until its pods are gone."""
        self.kubectl("delete", "statefulsets,pods", "--all", "--namespace=default")

    def run_in(self, namespace: str, pod: str, *command: str) -> str:
        """Run a command in a pod's first container, through its kubelet; return what it prints."""
        return self.kubectl("exec", f"--namespace={namespace}", pod, "--", *command)

    def logs(self, namespace: str, pod: str, *options: str) -> str:
        """Return what a pod's container has written, through its kubelet; "" where it has not begun."""
        try:
            return self.kubectl("logs", f"--namespace={namespace}", pod, *options)
        except KubectlFailed:
            return ""

    def wait(self, check: Callable[[], bool], what: str, timeout: float = PATIENCE_S) -> None:
        """Wait until ``check`` holds.

        Raises:
            TimeoutError: it did not within ``timeout`` seconds.
        """
        self.plane.wait(check, what, timeout, 0.5)


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Return whether a pod's kubelet says that it is ready."""
    conditions = pod["status"].get("conditions", [])
    return any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions)


@functools.cache
def prepare_image() -> Path | ComponentMissing:
    """Build gputile's image, once a run. To be called while tests are collected: it takes a minute."""
    try:
        return built_image()
    except ComponentMissing as missing:
        return missing


@contextmanager
def pod_cluster(programs: Mapping[str, Path]) -> Iterator[PodCluster]:
    """Start such a cluster with the default scheduler; the test is skipped where this machine does not let us."""
    image = prepare_image()
    if isinstance(image, ComponentMissing):
        skip_or_fail(image)
    with ExitStack() as stack:
        try:
            network = stack.enter_context(PodNetwork(programs))
            plane = stack.enter_context(
                ControlPlane(programs, apiserver_arguments=API_SERVER, services=network.services)
            )
            network.lead_to(plane)
            reference = f"{SCHEDULER_IMAGE}:{binaries.kubernetes_version()}"
            scheduler = write_program_image(plane.directory / "scheduler.tar", reference, programs["kube-scheduler"])
            images = (image, scheduler, write_sample_image(plane.directory))
            cluster = PodCluster(plane, network, {}, images, programs)
            stack.callback(cluster.close)
            for name in (GPU_NODE, PLAIN_NODE):
                cluster.start_node(name)
        except ComponentMissing as missing:
            skip_or_fail(missing)
        plane.start_scheduler(name="default-scheduler")
        yield cluster
