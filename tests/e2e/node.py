"""What the tests on a real node share: a node with GPUs, and whether what is seen, held and booked is the same."""

import json
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import yaml

from gputile.api.well_known import ALLOCATION_ANNOTATION, GPU_COUNT_LABEL, GPU_MEMORY, HANDOVER_ANNOTATION
from gputile.core.devices.allocation import AllocationError, decode_allocation
from gputile.node.agent.device_table import by_gpu
from gputile.node.agent.node_config import MODE_RESOURCES
from gputile.node.gateway import kubelet_pb2 as pb
from gputile.node.gateway.registration import CLIENT_OPTIONS
from tests.e2e.extender import pod_body
from tests.fakes import nvml
from tests.fakes.grpcservices import Stub
from tests.localcluster.binaries import skip_or_fail
from tests.localcluster.client import is_ready
from tests.localcluster.controlplane import ControlPlane
from tests.localcluster.gomodule import ComponentMissing
from tests.localcluster.gputile import (
    MANAGED,
    WEIGHT,
    NodeAgent,
    configuration_file,
    start_extender,
    write_configuration,
)
from tests.localcluster.images import PROBE_IMAGE, SHOW, SHOW_ONCE
from tests.localcluster.node import Outfit, RealNode
from tests.localcluster.processes import PATIENCE_S, Process

ON_NODE = {
    "hostNetwork": True,
    "automountServiceAccountToken": False,
    "enableServiceLinks": False,
    "terminationGracePeriodSeconds": 1,
}
VISIBLE, LIMITS, DONE = "NVIDIA_VISIBLE_DEVICES", "PROBE_LIMITS", "PROBE_DONE"
# What a kubelet says of a pod that it fails for good: what the agent refused, and where no agent answered.
ITS_OWN_WORDS = "FAILED_PRECONDITION", "FailedPrecondition"
NOBODY_ANSWERED = "no healthy devices", "code = Unavailable", "code = Canceled", "previously allocated devices"


@dataclass(frozen=True)
class ServedNode:
    """A real node whose GPUs an agent serves, wherever that runs."""

    plane: ControlPlane
    node: RealNode

    def allocatable(self) -> dict[str, str]:
        """Return what the node object says is allocatable."""
        found: dict[str, str] = self.node.object()["status"]["allocatable"]
        return found

    def wait_offered(self, wanted: Mapping[str, int]) -> None:
        """Wait until the node object has so much of these resources, and 0 of those of other modes."""
        everything = dict.fromkeys(MODE_RESOURCES, "0") | {name: str(amount) for name, amount in wanted.items()}
        found: dict[str, str] = {}

        def offered() -> bool:
            allocatable = self.allocatable()
            found.update({name: allocatable.get(name, "missing") for name in everything})
            return found == everything

        try:
            self.plane.wait(offered, "the node to offer it", interval=0.2)
        except TimeoutError as error:
            raise AssertionError(f"the node offers {found}, not {everything}") from error

    def condition(self, kind: str) -> dict[str, str]:
        """Return a condition of the node, {} where there is none."""
        return next((each for each in self.node.object()["status"]["conditions"] if each["type"] == kind), {})

    def label(self, labels: Mapping[str, str | None]) -> None:
        self.plane.nodes.label(self.node.name, labels)

    def pods(self, *namespaces: str) -> list[dict[str, Any]]:
        return [pod for name in namespaces for pod in self.plane.api.get(f"/api/v1/namespaces/{name}/pods")["items"]]

    def create(self, namespace: str, *bodies: Mapping[str, Any]) -> None:
        for body in bodies:
            self.plane.api.post(f"/api/v1/namespaces/{namespace}/pods", body)

    def delete_now(self, namespace: str, name: str) -> None:
        """Delete by force: the object is gone at once, its containers some time later."""
        self.plane.nodes.delete_pod_now(namespace, name)

    def clear(self, *namespaces: str, timeout: float = PATIENCE_S) -> None:
        """Delete all pods of these namespaces at once, and wait until the kubelet has let go of their devices."""
        for pod in self.pods(*namespaces):
            self.delete_now(pod["metadata"]["namespace"], pod["metadata"]["name"])
        self.plane.wait(lambda: not self.pods(*namespaces) and not self.assigned(), "an empty node", timeout, 0.5)

    def wait_running(self, count: int, *namespaces: str, timeout: float = PATIENCE_S) -> list[dict[str, Any]]:
        """Wait until ``count`` pods run whose containers have all said what they see; return them."""
        found: list[dict[str, Any]] = []

        def there() -> bool:
            found[:] = [pod for pod in self.pods(*namespaces) if runs(pod) and self.has_spoken(pod)]
            return len(found) == count

        try:
            self.plane.wait(there, f"{count} pods to run", timeout, 0.25)
        except TimeoutError as error:
            lines = [told(pod) for pod in self.pods(*namespaces) if not runs(pod)]
            raise AssertionError(f"{len(found)} of {count} run; the others: {lines[:5]}") from error
        return found

    def has_spoken(self, pod: Mapping[str, Any]) -> bool:
        return all(DONE in self.said(pod, container["name"]) for container in pod["spec"]["containers"])

    def said(self, pod: Mapping[str, Any], container: str) -> dict[str, str]:
        """Return what a container printed at its last start: its environment, and its limits under PROBE_LIMITS."""
        meta = pod["metadata"]
        uid = meta.get("annotations", {}).get("kubernetes.io/config.hash", meta["uid"])  # a static pod's own
        text = self.node.output(meta["namespace"], meta["name"], uid, container)
        pairs = (line.partition("=") for line in text.splitlines())
        return {name: value for name, _, value in pairs}

    def inspected(self, *options: str) -> list[list[str]]:
        """Return the words of each line of ``kubectl inspect cgpu``, the node's own line first."""
        command = [str(Path(sys.executable).with_name("kubectl-inspect-cgpu")), *options]
        environment = {"PATH": "/usr/bin:/bin", "KUBECONFIG": str(self.plane.kubeconfig()), "HOME": "/nonexistent"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return sorted(map(str.split, done.stdout.splitlines()), key=lambda line: line[:1] != [self.node.name])

    def assigned(self) -> dict[tuple[str, str, str], set[str]]:
        """Return the UUIDs of the GPUs of each container that the kubelet lists, by namespace, pod and container."""
        with grpc.insecure_channel(f"unix:{self.node.pod_resources}", options=CLIENT_OPTIONS) as channel:
            listed = Stub("v1", "PodResourcesLister", channel).List(pb.ListPodResourcesRequest(), timeout=PATIENCE_S)
        found: dict[tuple[str, str, str], set[str]] = {}
        for pod in listed.pod_resources:
            for container in pod.containers:
                ids = [each for devices in container.devices for each in devices.device_ids]
                found[pod.namespace, pod.name, container.name] = set(by_gpu(ids))
        return found

    def disagreements(self, *namespaces: str, forgetful: bool = False) -> list[str]:
        """Return the containers of running pods of which environment, kubelet and annotation name other GPUs.

        An init container is not listed by the kubelet; its environment is compared with the annotation. A
        ``forgetful`` kubelet may list a container without the devices that it was started with, if an Event says so: a
        kubelet that refuses a pod, some of whose containers run, and is killed before it has told the API server,
        leaves the pod to the next one without them.
        """
        assigned, wrong = self.assigned(), []
        for pod in self.pods(*namespaces):
            if not runs(pod):
                continue
            meta, spec = pod["metadata"], pod["spec"]
            booked = booked_gpus(pod)
            inits = [c["name"] for c in spec.get("initContainers", []) if c.get("restartPolicy") != "Always"]
            for container in (*spec.get("initContainers", []), *spec["containers"]):
                name, said = container["name"], self.said(pod, container["name"])
                sees = set(filter(None, said.get(VISIBLE, "").split(",")))
                holds = assigned.get((meta["namespace"], meta["name"], name), set()) if name not in inits else sees
                limits = json.loads(said[LIMITS])["cards"] if LIMITS in said else []
                limited = {share["uuid"] for share in limits} if limits else sees
                if forgetful and not holds and name in self.forgotten(meta["namespace"], meta["uid"]):
                    holds = sees
                if not sees == holds == booked.get(name, set()) == limited:
                    key = f"{meta['namespace']}/{meta['name']}/{name}"
                    wrong.append(f"{key}: sees {sees}, holds {holds}, booked {booked.get(name)}, limits {limited}")
        return wrong

    def forgotten(self, namespace: str, uid: str) -> set[str]:
        """Return the containers that the kubelet has forgotten, as the Events of a pod say."""
        found = self.plane.api.get(f"/api/v1/namespaces/{namespace}/events", fieldSelector=f"involvedObject.uid={uid}")
        told = [event["message"] for event in found["items"] if event["reason"] == "GpuForgotten"]
        names = [
            text.removeprefix("the kubelet has lost the GPU allocation of ").partition(", which still runs")[0]
            for text in told
        ]
        return {each for text in names for each in text.split(", ")}

    def wait_agreement(self, *namespaces: str, timeout: float = PATIENCE_S, forgetful: bool = False) -> None:
        """Wait until the three agree for all containers that run: the ledger is corrected after the fact."""

        def wrong() -> list[str]:
            return self.disagreements(*namespaces, forgetful=forgetful)

        try:
            self.plane.wait(lambda: not wrong(), "agreement", timeout, 0.5)
        except TimeoutError as error:
            raise AssertionError("\n".join(wrong()[:20])) from error


@dataclass(frozen=True)
class GpuNode(ServedNode):
    """A served node whose agent is a process of its own, as is the extender that books its GPUs."""

    agent: NodeAgent
    extender: str  # the name of its process
    extender_url: str = ""  # where its metrics are, "" behind a proxy of a soak

    def configure(self, settings: Mapping[str, object]) -> None:
        """Change the configuration that agent and extender follow."""
        self.agent.configure(settings)
        write_configuration(configuration_file(self.plane, self.extender), settings)


@contextmanager
def gpu_node(
    plane: ControlPlane,
    programs: Mapping[str, Any],
    name: str,
    labels: Mapping[str, str],
    settings: Mapping[str, object] | None = None,
    kind: str = "a100",
    *,
    cdi: bool = False,
    places: int = 0,
) -> Iterator[GpuNode]:
    """Start a node with a machine of ``kind``, its agent, the extender and a scheduler that asks it.

    With ``cdi`` containers get their devices by CDI too, from a specification like NVIDIA's in the node's ``cdi``.
    ``places`` is how many containers have a file system of their own for what they write.
    """
    settings = {"gpuMemoryUnit": "1GiB", **(settings or {})}
    with ExitStack() as stack:
        try:
            node = stack.enter_context(RealNode(plane, programs, name, labels, Outfit(places=places)))
        except ComponentMissing as missing:
            skip_or_fail(missing)
        options = (f"--cdi-dir={node.directory / 'cdi'}",) if cdi else ()
        agent = NodeAgent(node, nvml.MACHINES[kind](node.directory / "machine"), settings, options)
        stack.enter_context(agent.process).start()
        extender, url = start_extender(plane, f"extender-{name}", settings=settings)
        stack.enter_context(extender)
        scheduler = plane.start_scheduler(
            url, name=f"scheduler-{name}", bind=True, managed_resources=MANAGED, weight=WEIGHT
        )
        stack.enter_context(scheduler)
        agent.process.wait_ready(agent.is_ready)
        if cdi:
            describe_gpus(node.directory / "cdi", agent.machine)
        yield GpuNode(plane, node, agent, extender.name, url)


def describe_gpus(directory: Path, machine: nvml.FakeMachine) -> None:
    """Write what NVIDIA's toolkit does for containerd; this machine has no device files of the GPUs."""
    devices = [
        {"containerEdits": {"env": [f"CARD_BY_CDI={gpu.uuid}"]}, "name": name}
        for index, gpu in enumerate(machine.gpus)
        for name in (str(index), gpu.uuid)
    ]
    spec = {"cdiVersion": "0.5.0", "devices": devices, "kind": "nvidia.com/gpu"}
    directory.mkdir(exist_ok=True)
    (directory / "nvidia.yaml").write_text(f"---\n{yaml.safe_dump(spec)}")


def probe_container(
    name: str, limits: Mapping[str, int], *, once: bool = False, sidecar: bool = False
) -> dict[str, Any]:
    """Return a container that prints what it sees."""
    body: dict[str, Any] = {
        "name": name,
        "image": PROBE_IMAGE,
        "command": list(SHOW_ONCE if once else SHOW),
        "resources": {"limits": {resource: str(amount) for resource, amount in limits.items()}},
    }
    return body | ({"restartPolicy": "Always"} if sidecar else {})


def probe_pod(name: str, limits: Mapping[str, int], **spec: Any) -> dict[str, Any]:
    """Return a pod of one container that prints what it sees."""
    return probe_pod_of(name, [probe_container("main", limits)], **spec)


def probe_pod_of(name: str, containers: Sequence[Mapping[str, Any]], **spec: Any) -> dict[str, Any]:
    """Return a pod of these containers."""
    return pod_body(name, {}, **{**ON_NODE, "containers": list(containers), **spec})


def runnable_here(body: dict[str, Any]) -> dict[str, Any]:
    """Return a pod, or what makes pods, with the image and the command that the tests' node has."""
    spec = body["spec"]["template"]["spec"] if "template" in body["spec"] else body["spec"]
    spec |= ON_NODE
    for container in spec["containers"]:
        container |= {"image": PROBE_IMAGE, "command": list(SHOW)}
        container.pop("workingDir", None)
    return body


def random_probe_pod(choice: random.Random, name: str, *, equal: bool) -> dict[str, Any]:
    """Return a pod of one container, of several, with init containers, with a sidecar, or on several GPUs."""

    def size() -> int:
        return 1 if equal else choice.choice((1, 1, 1, 2, 3))

    def one(label: str, units: int, **more: bool) -> dict[str, Any]:
        return probe_container(label, {GPU_MEMORY: units}, **more)

    kind = choice.random()
    if kind < 0.1:
        return probe_pod_of(name, [one("a", size()), one("b", size()), probe_container("plain", {})])
    if kind < 0.2:
        inits = [one("init", size(), once=True), probe_container("wait", {}, once=True)]
        return probe_pod_of(name, [one("main", size())], initContainers=inits)
    if kind < 0.25:
        inits = [one("side", 1, sidecar=True), one("init", size(), once=True)]
        return probe_pod_of(name, [one("main", size())], initContainers=inits)
    if kind < 0.3:
        gpus = choice.choice((2, 3))
        return probe_pod_of(name, [one("main", gpus * size())], labels={GPU_COUNT_LABEL: str(gpus)})
    return probe_pod_of(name, [one("main", size())])


def runs(pod: Mapping[str, Any]) -> bool:
    """Return whether all containers of a pod run."""
    return pod["status"].get("phase") == "Running" and all(
        "running" in status.get("state", {}) for status in pod["status"].get("containerStatuses", [])
    )


def told(pod: Mapping[str, Any]) -> str:
    """Return what its status says of a pod, in a line."""
    status = pod["status"]
    waiting = [s["state"]["waiting"] for s in status.get("containerStatuses", []) if "waiting" in s.get("state", {})]
    words = (status.get("phase"), status.get("reason", ""), status.get("message", ""), waiting)
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}: {words}"


def booked_gpus(pod: Mapping[str, Any]) -> dict[str, set[str]]:
    """Return the UUIDs of each container by the pod's annotation."""
    text = pod["metadata"].get("annotations", {}).get(ALLOCATION_ANNOTATION, "")
    try:
        containers = decode_allocation(text).containers
    except AllocationError:
        return {}
    return {name: {share.uuid for share in shares} for name, shares in containers.items()}


def kill_agent(here: GpuNode) -> None:
    """Kill the agent that runs now; the gateway stays."""
    here.agent.kill_agent()


def restart_kubelet(here: GpuNode) -> None:
    """Kill the kubelet, and start it again."""
    here.node.kubelet.kill()
    here.node.kubelet.start()


def replace(here: GpuNode, older: Process, younger: Process, url: str) -> None:
    """Have another agent take over, which serves at ``url``, as in an upgrade."""
    younger.start()
    here.plane.wait(lambda: is_ready(url), "the younger agent")
    here.plane.wait(
        lambda: HANDOVER_ANNOTATION not in here.node.object()["metadata"].get("annotations", {}), "the node to be open"
    )
    older.stop()


def restart_all(here: GpuNode) -> None:
    """Kill the agent, its gateway and the kubelet, as when the machine loses its power, and start them again."""
    here.agent.process.kill()
    restart_kubelet(here)
    here.agent.process.start()
