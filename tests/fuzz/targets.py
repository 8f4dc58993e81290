"""Everything that parses bytes of pods, users, the kubelet and containers: each as a function, with what it may raise.

Whatever the bytes are, nothing else comes out. tests/unit/test_fuzz.py mutates the seeds a little in each run, and
``python -m tests.soak fuzz`` looks for new paths for as long as it is let.
"""

import contextlib
import io
import json
import struct
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from benchmarks.replay.departures import schedule
from benchmarks.replay.trace import TraceError, read_arrivals, read_nodes, read_workload

from gputile.api.config.section import ConfigurationError
from gputile.api.config.v1alpha1 import Configuration, load_configuration
from gputile.api.conversion import ConversionError, decode
from gputile.api.core import Node, Pod
from gputile.api.quantity import QuantityError, parse_count, parse_mib, parse_quantity
from gputile.api.webhooks import AdmissionReview, ExtenderArgs, ExtenderBindingArgs, ExtenderPreemptionArgs
from gputile.api.well_known import INVENTORY_ANNOTATION
from gputile.controlplane.controller.node_reconciler import diagnose
from gputile.core.admission.legacy_forms import encode_patch
from gputile.core.admission.review import AdmissionPolicy, UnreadableReview, message, mutate, validate
from gputile.core.devices.allocation import (
    Allocation,
    AllocationError,
    GpuShare,
    ReservationError,
    decode_allocation,
    decode_reservation,
    encode_allocation,
)
from gputile.core.devices.inventory import Gpu, Inventory, InventoryError, decode_inventory, encode_inventory
from gputile.core.devices.request import RequestError, parse_request
from gputile.core.ledger.node_info import node_info_of
from gputile.kube.config import load_access
from gputile.kube.errors import ApiError, BadAnswer, ConfigError
from gputile.kube.objects import ObjectDecoder
from gputile.node.agent import cdi
from gputile.node.agent.files.allocation_files import CHECKPOINT, read_checkpoint
from gputile.node.agent.known_pods import known_pod
from gputile.node.arbiter import messages
from gputile.node.arbiter.accounts import Share
from gputile.node.arbiter.messages import Assignment, LineError, decode_line, encode_line
from gputile.node.isolation.usage_file_reader import read_usage
from gputile.node.native_layouts import USAGE_BYTES, USAGE_MAGIC
from gputile.support.yaml_loader import DocumentError, load_document
from gputile.tools.nodepool.pool import DescriptionError, load_nodepool
from gputile.tools.simulator.manifests import ManifestError
from gputile.tools.simulator.scenario import load_scenario
from gputile.tools.web.agent_usage import UnreadableMetrics, agent_reading
from tests.fakes.agents import metrics_text

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
_MEMORY = Path("/dev/shm")  # thousands of small files a second are written
_DIRECTORY = tempfile.TemporaryDirectory(prefix="gputile-fuzz-", dir=_MEMORY if _MEMORY.is_dir() else None)
_FILES = Path(_DIRECTORY.name)
_CONFIGURATION = Configuration()


@dataclass(frozen=True, slots=True)
class Target:
    """``run`` takes bytes and raises nothing but ``allowed``; ``seeds`` are bytes that it understands."""

    run: Callable[[bytes], object]
    allowed: tuple[type[Exception], ...]
    seeds: tuple[bytes, ...]

    def check(self, data: bytes) -> None:
        """Run on ``data``; what is not allowed comes out."""
        with contextlib.suppress(*self.allowed):
            self.run(data)


def _text(parse: Callable[[str], object]) -> Callable[[bytes], object]:
    """Return the parser of a text on bytes: an annotation is text when it comes."""
    return lambda data: parse(data.decode(errors="replace"))


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


# -- annotations, nodes and pods
_GPUS = (Gpu(0, "GPU-a", 15109, "T4"), Gpu(1, "GPU-b", 15109, "T4"))
_INVENTORY = Inventory(_GPUS, mode="cgpu", unit_mib=128, replicas=0, bandwidth=((0, 8), (8, 0)))
_SHARES = (GpuShare("GPU-a", 0, 2048, 50),)
_ALLOCATION = Allocation(mode="cgpu", unit_mib=128, gpus=_SHARES, containers={"main": _SHARES})
_NODE = {
    "metadata": {
        "name": "n",
        "labels": {"ack.node.gpu.schedule": "cgpu", "ack.node.gpu.placement": "spread"},
        "annotations": {INVENTORY_ANNOTATION: encode_inventory(_INVENTORY)},
    },
    "status": {"allocatable": {"cpu": "8", "aliyun.com/gpu-mem": "236"}},
}
_POD = {
    "metadata": {"name": "p", "namespace": "team", "uid": "u", "labels": {"aliyun.com/gpu-count": "2"}},
    "spec": {
        "initContainers": [
            {"name": "i", "restartPolicy": "Always", "resources": {"limits": {"aliyun.com/gpu-mem": 2}}}
        ],
        "containers": [
            {
                "name": "main",
                "env": [{"name": "A", "value": "b"}],
                "resources": {
                    "limits": {"aliyun.com/gpu-mem": "4", "aliyun.com/gpu-core.percentage": "20"},
                    "requests": {"cpu": "100m", "memory": "1Gi"},
                },
                "volumeMounts": [{"name": "v", "mountPath": "/tmp/../etc"}],
            }
        ],
        "volumes": [{"name": "v", "hostPath": {"path": "/data"}}],
    },
}
_HOLD = {"plan": "p", "size": 2, "pods": 2, "node": "n", "expires_ns": 1, "version": 1} | {
    "allocation": json.loads(encode_allocation(_ALLOCATION))
}
_POD_DECODER = msgspec.json.Decoder(Pod)
_NODE_DECODER = msgspec.json.Decoder(Node)


def _node(data: bytes) -> None:
    node = _NODE_DECODER.decode(data)
    node_info = node_info_of(node, _CONFIGURATION)
    for position in range(len(node_info.inventory.gpus)):
        node_info.gpu_total(position)
    diagnose(node, _CONFIGURATION)


def _pod(data: bytes) -> None:
    pod = _POD_DECODER.decode(data)
    known_pod(pod, _CONFIGURATION)
    parse_request(pod, 1024)


# -- what the API server and kube-scheduler send
_JSON = (msgspec.MsgspecError, UnicodeError, RecursionError)
_REVIEW = msgspec.json.Decoder(AdmissionReview)
_POLICY = AdmissionPolicy(128, frozenset(("system:serviceaccount:gputile:gputile-agent",)), gangs=True, scheduler="s")
_LEGACY: dict[str, Any] = {
    "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}
}


def _review(data: bytes) -> None:
    request = _REVIEW.decode(data).request
    if request is not None:
        for judge in (mutate, validate):
            verdict = judge(request, _POLICY)
            encode_patch(verdict.operations)
            assert len(message(verdict.refusals)) < 10_000


def _asked(operation: str, **objects: Any) -> bytes:
    user = {"username": "u", "groups": ["g"]}
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    request = {"uid": "u", "kind": kind, "operation": operation, "namespace": "team", "userInfo": user, **objects}
    return _json({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})


_OLD = {
    "metadata": {
        "name": "p",
        "annotations": {
            "scheduler.alpha.kubernetes.io/affinity": json.dumps(_LEGACY),
            "gputile.io/gpu-weight": "3",
            "gputile.io/memory-unit-mib": "128",
        },
        "labels": {"scheduling.x-k8s.io/pod-group": "g"},
    },
    "spec": {
        "nodeSelector": {"alpha.kubernetes.io/nvidia-gpu-name": "Tesla K80"},
        "containers": [{"name": "c", "resources": {"limits": {"alpha.kubernetes.io/nvidia-gpu": "1"}}}],
    },
}
_VICTIMS = {"n": {"Pods": [_POD], "NumPDBViolations": 1}}
_EXTENDER = tuple(msgspec.json.Decoder(kind) for kind in (ExtenderArgs, ExtenderBindingArgs, ExtenderPreemptionArgs))


def _extender(data: bytes) -> None:
    for decoder in _EXTENDER:
        try:
            asked = decoder.decode(data)
        except msgspec.MsgspecError:
            continue
        if isinstance(asked, ExtenderArgs):
            parse_request(asked.pod, 1024)


_PODS = ObjectDecoder(Pod)


def _watched(data: bytes) -> None:
    try:
        _PODS.page(data)
    finally:
        _PODS.line(data, "/api/v1/pods")


# -- files that people write
def _documented(load: Callable[[Any], object]) -> Callable[[bytes], object]:
    return lambda data: load(load_document(data))


def _placed(name: str, load: Callable[[Path], object]) -> Callable[[bytes], object]:
    """Return the reader of a file on its content."""
    path = _FILES / name

    def run(data: bytes) -> None:
        path.write_bytes(data)
        load(path)

    return run


def _manifests(data: bytes) -> None:
    sys.stdin = io.TextIOWrapper(io.BytesIO(data))
    load_scenario([str(EXAMPLES / "cluster.yaml"), "-"])


_KUBECONFIG = b"""
apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: k, user: u, namespace: 'n'}}]
clusters: [{name: k, cluster: {server: "https://127.0.0.1:6443", insecure-skip-tls-verify: true}}]
users: [{name: u, user: {token: t}}]
"""
_POOL = b"""
apiVersion: gputile.io/v1alpha1
kind: NodePool
provider: gke
way: own-driver
name: gpus
cluster: c
location: europe-west4-a
instanceType: n1-standard-8
accelerator: nvidia-tesla-t4
gpus: {count: 2, memory: 15109MiB, model: Tesla-T4}
mode: cgpu
"""

# -- traces
_TRACE = {
    "openb_node_list_gpu_node.csv": b"sn,cpu_milli,memory_mib,gpu,model\nn1,8000,1000,2,T4\nn2,8000,1000,1,V100\n",
    "openb_pod_list_x.csv": b"name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time,deletion_time\n"
    b"a,1000,1,1,600,T4,0,10\nb,1000,1,2,1000,,5,50\n",
    "arrivals/openb_pod_list_x.seq.csv": b"42,0,1,1\n",
    "arrivals/openb_pod_list_x.noderank.csv": b"42,1,0\n",
}


def _trace(name: str) -> Target:
    directory = _FILES / name.replace("/", "-")
    (directory / "arrivals").mkdir(parents=True, exist_ok=True)
    for file, content in _TRACE.items():
        (directory / file).write_bytes(content)

    def run(data: bytes) -> None:
        (directory / name).write_bytes(data)
        nodes, workload = read_nodes(directory), read_workload(directory, "x")
        read_arrivals(directory, nodes, workload, 42)
        schedule(nodes, workload, 42, 0.5)

    return Target(run, (TraceError,), (_TRACE[name],))


# -- the node: kubelet, arbiter, containers
_KUBELET = _json(
    {
        "Data": {
            "PodDeviceEntries": [
                {
                    "PodUID": "u",
                    "ContainerName": "main",
                    "ResourceName": "aliyun.com/gpu-mem",
                    "DeviceIDs": {"-1": ["GPU-0::0", "GPU-1::1"]},
                    "AllocResp": "EhsKFi9ldGMvZ3B1dGlsZS9hbGxvY2F0aW9uEgEv",
                }
            ],
            "RegisteredDevices": {},
        },
        "Checksum": 1,
    }
)


TARGETS: Mapping[str, Target] = {
    "agent-metrics": Target(agent_reading, (UnreadableMetrics,), (metrics_text({"a/p": 5}, {"a/p": 1.5}),)),
    "inventory": Target(_text(decode_inventory), (InventoryError,), (encode_inventory(_INVENTORY).encode(),)),
    "allocation": Target(_text(decode_allocation), (AllocationError,), (encode_allocation(_ALLOCATION).encode(),)),
    "hold": Target(_text(decode_reservation), (ReservationError,), (_json(_HOLD),)),
    "node": Target(_node, _JSON, (_json(_NODE),)),
    "pod": Target(_pod, (*_JSON, RequestError), (_json(_POD), _json(_OLD))),
    "quantity": Target(
        _text(lambda text: (parse_quantity(text), parse_count(text))), (QuantityError,), (b"15", b"1.5Gi", b"1e3")
    ),
    "memory-size": Target(_text(parse_mib), (QuantityError,), (b"128MiB", b"1Gi")),
    "review": Target(
        _review,
        (*_JSON, UnreadableReview),
        (_asked("CREATE", object=_POD), _asked("CREATE", object=_OLD), _asked("UPDATE", object=_POD, oldObject=_OLD)),
    ),
    "extender": Target(
        _extender,
        (*_JSON, RequestError),
        (
            _json({"Pod": _POD, "NodeNames": ["n"]}),
            _json({"PodName": "p", "PodNamespace": "t", "PodUID": "u", "Node": "n"}),
            _json(
                {"Pod": _POD, "NodeNameToVictims": _VICTIMS, "NodeNameToMetaVictims": {"n": {"Pods": [{"UID": "u"}]}}}
            ),
        ),
    ),
    "watch": Target(
        _watched,
        (BadAnswer, ApiError),
        (
            _json({"metadata": {"resourceVersion": "1"}, "items": [_POD]}),
            _json({"type": "ADDED", "object": _POD}),
            _json({"type": "ERROR", "object": {"kind": "Status", "code": 410}}),
        ),
    ),
    "document": Target(
        load_document, (DocumentError,), (_KUBECONFIG, b"a: &x [1, !!str 2]\nb: {<<: {c: *x}}\n", b'{"a": [1.5]}')
    ),
    "configuration": Target(
        _documented(load_configuration),
        (ConfigurationError, DocumentError),
        (b"gpuMemoryUnit: 128MiB\ngpuTime: {policy: weak}\ntrust: {groups: {g: [a, b]}}\n",),
    ),
    "nodepool": Target(_documented(load_nodepool), (DescriptionError, DocumentError), (_POOL,)),
    "kubeconfig": Target(
        _placed("kubeconfig", lambda path: load_access(path, environ={})), (ConfigError,), (_KUBECONFIG,)
    ),
    "manifests": Target(
        _manifests,
        (ManifestError,),
        tuple((EXAMPLES / name).read_bytes() for name in ("workloads.yaml", "one-more.yaml")),
    ),
    **{f"trace-{what}": _trace(file) for what, file in zip(("nodes", "pods", "order", "ranks"), _TRACE, strict=True)},
    "arbiter-message": Target(
        messages.decode,
        (messages.ProtocolError,),
        (
            *(
                messages.Message(kind, a=1, b=2).encode()
                for kind in (messages.MessageKind.HELLO, messages.MessageKind.GPU)
            ),
            messages.Message(messages.MessageKind.TURN, 1, 2, 3).encode(),
        ),
    ),
    "arbiter-usage": Target(
        lambda line: messages.decode_line(line, messages.Used),
        (messages.LineError,),
        (messages.encode_line({"/d/a": {"GPU-a": messages.Spent(5, 2)}}),),
    ),
    "usage-file": Target(
        _placed("usage", lambda path: read_usage(path, 2)),
        (),
        (struct.pack("<IIII", USAGE_MAGIC, 1, 2, 1).ljust(USAGE_BYTES, b"\0"),),
    ),
    "arbiter-assignment": Target(
        lambda line: decode_line(line, Assignment),
        (LineError,),
        (encode_line(Assignment({"/d/a": {"GPU-a": Share(1, 0, 100, 0)}}, 30, 1000)),),
    ),
    "checkpoint": Target(
        lambda text: decode(text, CHECKPOINT), (ConversionError,), (_json({"mode": "share", "unit_mib": 1024}),)
    ),
    "kubelet-checkpoint": Target(read_checkpoint, (ConversionError,), (_KUBELET,)),
    "cdi": Target(cdi.nvidia_devices, (), (b"devices:\n- name: GPU-a\nkind: nvidia.com/gpu\n",)),
}
