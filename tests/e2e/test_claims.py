"""Shares and whole GPUs through ResourceClaims: kube-scheduler allocates, gputile ranks, and no pod depends on it."""

import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2 as httpx
import msgspec
import pytest

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Node
from gputile.api.resource_claims import RESOURCE_SLICES_PATH, AllocatedDevice, ResourceClaim, gpu_index, slice_body
from gputile.api.well_known import CLAIMS_LABEL, CLAIMS_RESOURCE, INVENTORY_ANNOTATION, MODE_LABEL, Mode
from gputile.core.devices.claim_request import CLAIM_UNIT_MIB, parse_claim
from gputile.core.devices.inventory import decode_inventory, encode_inventory
from gputile.core.devices.request import Request
from gputile.core.ledger.ledger import Ledger
from gputile.core.scheduling.placement_engine import Decision, PlacementEngine
from gputile.core.scheduling.pod_filter import ranked_shapes
from gputile.node.agent.claims.slices import slice_of
from gputile.node.agent.node_config import EffectiveMode, NodeConfig, Sharing
from gputile.node.nvml.probe import ProbedGpu, ProbedMachine
from tests.conftest import examples
from tests.e2e.extender import bound, pod_body, pods_in, why_pending, write_cluster
from tests.fakes.claimbuilders import claim_body
from tests.localcluster.admission import installed
from tests.localcluster.client import ApiError, text_at
from tests.localcluster.commands import SchedulerOptions
from tests.localcluster.controlplane import ControlPlane
from tests.localcluster.gputile import EXAMPLES, MANAGED, WEIGHT, described_nodes, start_extender
from tests.localcluster.machine import free_ports

pytestmark = pytest.mark.requirement("B8")

SETTINGS = {"features": {"claims": True}}
MOST_PODS = 16
CLUSTER = """
nodes:
- {name: share, count: 3, mode: cgpu, gpus: {count: 4, model: Tesla T4, memory: 16GiB}}
- {name: both, mode: core_mem, gpus: {count: 2, model: NVIDIA A10, memory: 24GiB}}
- {name: whole, count: 2, gpus: {count: 4, model: Tesla V100, memory: 32GiB}}
"""
MORE_NODES = """
nodes:
- {{name: share-more, count: {shared}, mode: cgpu, gpus: {{count: 4, model: Tesla T4, memory: 16GiB}}}}
- {{name: whole-more, count: {whole}, gpus: {{count: 4, model: Tesla V100, memory: 32GiB}}}}
"""
SIZES = {"share": 16 << 10, "both": 24 << 10, "whole": 32 << 10}


def claims_api(namespace: str, kind: str = "resourceclaims") -> str:
    return f"/apis/resource.k8s.io/v1/namespaces/{namespace}/{kind}"


def create_nodes(plane: ControlPlane, directory: Path, description: str) -> None:
    """Create these nodes as agents leave them that give their GPUs by claims, and their slices."""
    for spec in described_nodes(write_cluster(directory, description)):
        inventory = msgspec.structs.replace(decode_inventory(spec.annotations[INVENTORY_ANNOTATION]), claims=True)
        mode = Mode(spec.labels.get(MODE_LABEL, Mode.EXCLUSIVE.value))
        created = plane.nodes.create_node(
            spec.name,
            labels={**spec.labels, CLAIMS_LABEL: "true"},
            annotations={INVENTORY_ANNOTATION: encode_inventory(inventory)},
        )
        config = NodeConfig(inventory, EffectiveMode(mode, 1024, Sharing.NONE, claims=True))
        gpus = tuple(ProbedGpu(gpu.index, gpu.uuid, gpu.model, gpu.mib, "") for gpu in inventory.gpus)
        offered = slice_of(msgspec.convert(created, Node), config, ProbedMachine(gpus), MOST_PODS)
        plane.api.post(RESOURCE_SLICES_PATH, slice_body(offered))


@pytest.fixture(scope="module")
def cluster(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """The nodes of CLUSTER and the DeviceClasses; no scheduler and nothing of gputile's."""
    try:
        control_plane.api.get("/apis/resource.k8s.io/v1")
    except ApiError:
        pytest.skip("this Kubernetes has no ResourceClaims")
    classes = str(EXAMPLES / "extender" / "deviceclasses.yaml")
    control_plane.kubectl("apply", "-f", classes)
    create_nodes(control_plane, tmp_path_factory.mktemp("cluster"), CLUSTER)
    yield control_plane
    control_plane.kubectl("delete", "-f", classes)
    control_plane.api.delete(RESOURCE_SLICES_PATH)
    control_plane.nodes.delete_all_nodes()


def create_template(
    plane: ControlPlane,
    namespace: str,
    name: str,
    devices: str = "gputile-share",
    *,
    count: int = 1,
    distinct: bool = False,
    **amounts: str,
) -> ResourceClaim:
    """Create a template of claims; return a claim that is made of it."""
    exactly: dict[str, Any] = {"deviceClassName": devices, "count": count}
    if amounts:
        exactly["capacity"] = {"requests": amounts}
    asked: dict[str, Any] = {"requests": [{"name": "gpu", "exactly": exactly}]}
    if distinct:
        asked["constraints"] = [{"distinctAttribute": "gpu.gputile.io/uuid"}]
    template = {"metadata": {"name": name}, "spec": {"spec": {"devices": asked}}}
    plane.api.post(claims_api(namespace, "resourceclaimtemplates"), template)
    return msgspec.convert(template["spec"], ResourceClaim)


def create_pod(
    plane: ControlPlane, namespace: str, name: str, template: str, *, stamped: bool = True, **spec: Any
) -> None:
    body = pod_body(name, {}, **spec)
    body["spec"].setdefault("resourceClaims", [{"name": "gpu", "resourceClaimTemplateName": template}])
    resources: dict[str, Any] = {"claims": [{"name": "gpu"}]}
    if stamped:
        resources |= {"limits": {CLAIMS_RESOURCE: "0"}, "requests": {CLAIMS_RESOURCE: "0"}}
    body["spec"]["containers"][0]["resources"] = resources
    plane.api.post(f"/api/v1/namespaces/{namespace}/pods", body)


def claims_in(plane: ControlPlane, namespace: str) -> list[ResourceClaim]:
    found = plane.api.get(claims_api(namespace))["items"]
    return [msgspec.convert(each, ResourceClaim) for each in found]


def gpus_of(plane: ControlPlane, namespace: str) -> dict[str, str]:
    """Return the GPU of each pod whose claim is allocated, as "node/index"."""
    held = {}
    for claim in claims_in(plane, namespace):
        for gpu in claim.gpus:
            held[claim.pods[0].name if claim.pods else claim.metadata.name] = f"{gpu.pool}/{gpu_index(gpu.device)}"
    return held


def over_allocated(claims: list[ResourceClaim]) -> list[str]:
    """Add up what claims hold of each GPU, independently of the ledger; return which GPUs hold too much."""
    held = defaultdict[tuple[str, str], list[AllocatedDevice]](list)
    for claim in claims:
        for gpu in claim.gpus:
            held[gpu.pool, gpu.device].append(gpu)
    return [
        f"{node}/{device}"
        for (node, device), gpus in held.items()
        if sum(gpu.mib for gpu in gpus) > SIZES[node.partition("-")[0]]
        or sum(gpu.percent for gpu in gpus) > 100
        or len(gpus) > (MOST_PODS if all(gpu.share_id for gpu in gpus) else 1)
    ]


def test_pods_get_the_node_and_the_gpu_that_gputile_ranks_first(cluster: ControlPlane, namespace: str) -> None:
    """One after the other, so that each is ranked by all before it. kube-scheduler alone draws lots among nodes."""
    create_template(cluster, namespace, "six", memory="6Gi")
    create_template(cluster, namespace, "ten", memory="10Gi")
    create_template(cluster, namespace, "both", memory="2Gi", cores="38")  # steps of 5: 40
    create_template(cluster, namespace, "whole", "gputile-gpu")
    story = {  # the template of each pod, the node that it wants, and the GPU that it gets
        "p0": ("ten", "share-2", "share-2/0"),
        "p1": ("six", "", "share-2/0"),
        "p2": ("ten", "", "share-2/1"),
        "p3": ("six", "", "share-2/1"),
        "p4": ("both", "", "both/0"),
        "p5": ("both", "", "both/0"),
        "p6": ("both", "", "both/1"),
        "p7": ("whole", "whole-2", "whole-2/0"),
        "p8": ("whole", "", "whole-2/1"),
    }
    extender, url = start_extender(cluster, settings=SETTINGS)
    scheduler = cluster.start_scheduler(
        url, managed_resources=MANAGED, weight=WEIGHT, claims=True, pods_without_gpus=True
    )
    with extender, scheduler:
        for name, (template, node, _) in story.items():
            create_pod(
                cluster, namespace, name, template, nodeSelector={"kubernetes.io/hostname": node} if node else {}
            )
            cluster.wait(lambda name=name: name in bound(pods_in(cluster, namespace)), f"{name} bound")  # type: ignore[misc]
    assert gpus_of(cluster, namespace) == {name: gpu for name, (_, _, gpu) in story.items()}
    assert over_allocated(claims_in(cluster, namespace)) == []


def test_the_pods_of_the_guide_are_brought_to_the_extender_by_admission(cluster: ControlPlane, namespace: str) -> None:
    extender, url = start_extender(cluster, settings=SETTINGS)
    scheduler = cluster.start_scheduler(url, managed_resources=MANAGED, weight=WEIGHT, claims=True)
    with installed(cluster, settings=SETTINGS), extender, scheduler:
        cluster.kubectl("-n", namespace, "apply", "-f", str(EXAMPLES / "claims.yaml"))
        cluster.wait(lambda: len(bound(pods_in(cluster, namespace))) == 2, "both pods bound")
        asked = text_at(f"{url}/metrics")
    assert 'gputile_extender_requests_total{outcome="scored",verb="prioritize-claims"} ' in asked
    for stored in pods_in(cluster, namespace):
        (main,) = stored["spec"]["containers"]
        assert main["resources"] == {
            "claims": [{"name": "gpu"}],
            "limits": {CLAIMS_RESOURCE: "0"},
            "requests": {CLAIMS_RESOURCE: "0"},
        }


TEMPLATES: dict[str, dict[str, Any]] = {
    "tiny": {"memory": "1"},
    "five": {"memory": "5Gi"},
    "odd": {"memory": "2500M"},
    "cores": {"memory": "3Gi", "cores": "33"},
    "seven": {"memory": "7Gi"},
    "two": {"memory": "3Gi", "count": 2, "distinct": True},
    "whole": {"devices": "gputile-gpu"},
    "pair": {"devices": "gputile-gpu", "count": 2},
}
WANTED = {
    "share-1": ["five", "odd", "seven", "two"],
    "both": ["tiny", "five", "cores"],
    "whole-1": ["whole", "pair"],
}


def predicted(plane: ControlPlane, namespace: str, template: ResourceClaim, node: str) -> list[int]:
    """Return the GPUs that the ledger would give a claim now, by what the API server has; [] where it does not fit."""
    ledger = Ledger(Configuration())
    ledger.apply_node(msgspec.convert(plane.api.get(f"/api/v1/nodes/{node}"), Node))
    for claim in claims_in(plane, namespace):
        ledger.apply_claim(claim)
    (shape,) = parse_claim(template)
    engine = PlacementEngine(ledger)
    for each in ranked_shapes(shape):
        decision = engine.decide(Request(each, CLAIM_UNIT_MIB, ()), node, 0)
        if isinstance(decision, Decision):
            return [gpu.index for gpu in decision.gpus]
    return []


def test_the_ledger_chooses_the_gpus_that_kube_scheduler_allocates(cluster: ControlPlane, namespace: str) -> None:
    """One after the other on each kind of node, others deleted in between; what does not fit by one fits by neither."""
    claims = {name: create_template(cluster, namespace, name, **asked) for name, asked in TEMPLATES.items()}
    chance, there, refused, pods = random.Random(2), list[str](), 0, f"/api/v1/namespaces/{namespace}/pods"
    with cluster.start_scheduler():
        for number in range(90):
            if there and chance.random() < 0.45:
                cluster.nodes.delete_pod_now(namespace, there.pop(chance.randrange(len(there))))
                cluster.wait(lambda: len(claims_in(cluster, namespace)) == len(there), "the claim to be gone")
            name, node = f"p{number}", chance.choice(["share-1", "share-1", "both", "whole-1"])
            template = chance.choice(sorted(TEMPLATES) if number % 10 == 0 else WANTED[node])
            expected = predicted(cluster, namespace, claims[template], node)
            create_pod(cluster, namespace, name, template, nodeSelector={"kubernetes.io/hostname": node})
            if expected:
                cluster.wait(lambda name=name: name in bound(pods_in(cluster, namespace)), f"{name} bound")  # type: ignore[misc]
                (held,) = (each for each in claims_in(cluster, namespace) if [pod.name for pod in each.pods] == [name])
                assert sorted(gpu_index(gpu.device) for gpu in held.gpus) == expected, (number, template, node)
                there.append(name)
            else:
                cluster.wait(lambda name=name: bool(why_pending(cluster, namespace, name)), f"{name} refused")  # type: ignore[misc]
                assert not cluster.api.get(f"{pods}/{name}")["spec"].get("nodeName"), (number, template, node)
                cluster.nodes.delete_pod_now(namespace, name)
                refused += 1
    assert len(there) > 10
    assert refused > 10


LIMIT = "spec.devices.requests: no device has more than 1Ei of a capacity: ask for less"
NOTHING_FITS = "cannot allocate all claims"
ALONE: dict[str, Any] = {"selectors": [{"cel": {"expression": "device.attributes['gpu.gputile.io'].model == 'H100'"}}]}
BAD: list[
    tuple[dict[str, Any], str]
] = [  # what a claim asks, and what the API server, kube-scheduler or an Event says of it
    ({"memory": "-1Gi"}, "memory is -1Gi: ask for more than 0"),
    ({"memory": "0"}, "memory is 0: ask for more than 0"),
    ({"memory": "1Ei"}, NOTHING_FITS),
    ({"memory": "9Ei"}, LIMIT),
    ({"memory": "1Gi", "cores": str(2**63 - 1)}, LIMIT),
    ({"memory": "lots"}, "quantities must match the regular expression"),
    ({"gpu.gputile.io/memory": "1Gi"}, NOTHING_FITS),
    ({"memory": "1Gi", "count": 33}, "exceeds the claim limit of 32"),
    ({"memory": "1Gi", "request": {"adminAccess": True}}, "admin access"),
    ({"memory": "1Gi", "request": ALONE}, NOTHING_FITS),
]


def test_a_bad_claim_ends_in_one_message(cluster: ControlPlane, namespace: str) -> None:
    """It is refused, waits, or gets a GPU and an Event; the ledger's text is in test_claim_request.py."""
    extender, url = start_extender(cluster, settings=SETTINGS)
    path = claims_api(namespace)
    mine = [{"name": "gpu", "resourceClaimName": "bad"}]

    def said(name: str) -> str:
        events = cluster.api.get(f"/api/v1/namespaces/{namespace}/events", fieldSelector=f"involvedObject.name={name}")
        return why_pending(cluster, namespace, name) + " ".join(each["message"] for each in events["items"])

    with extender, cluster.start_scheduler(url, managed_resources=MANAGED, weight=WEIGHT, claims=True):
        for number, (asked, message) in enumerate(BAD):
            name = f"p{number}"
            refusal = ""
            try:
                cluster.api.post(path, claim_body("bad", **asked))
            except ApiError as error:
                refusal = str(error)
            if refusal:
                assert message in refusal
                continue
            create_pod(cluster, namespace, name, "", resourceClaims=mine)
            cluster.wait(lambda name=name, message=message: message in said(name), f"{message} of {asked}")  # type: ignore[misc]
            assert over_allocated(claims_in(cluster, namespace)) == []
            cluster.nodes.delete_pod_now(namespace, name)
            cluster.api.delete(f"{path}/bad")
            cluster.wait(lambda: not claims_in(cluster, namespace), "the claim to be gone")
        cluster.api.post(path, claim_body("bad", memory="1Gi"))
        for name in ("first", "second"):
            create_pod(cluster, namespace, name, "", resourceClaims=mine)
            cluster.wait(lambda: "first" in bound(pods_in(cluster, namespace)), "the first pod of a claim")
        cluster.wait(lambda: "a claim for a GPU is for one pod" in said("second"), "why the second one waits")
        assert set(bound(pods_in(cluster, namespace))) == {"first"}


def test_without_anything_of_gputile_all_pods_that_fit_are_bound(cluster: ControlPlane, namespace: str) -> None:
    """No extender, webhook or controller runs, whether pods were stamped before or not."""
    create_template(cluster, namespace, "four", memory="4Gi")
    create_template(cluster, namespace, "whole", "gputile-gpu")
    (port,) = free_ports(1)
    # 12 GPUs of 16 GiB and 2 of 24 GiB, whose compute goes to one pod without a request for some; 8 whole GPUs
    room = {"four": 50, "whole": 8}
    with cluster.start_scheduler(f"http://127.0.0.1:{port}", managed_resources=MANAGED, weight=WEIGHT, claims=True):
        for template, count in room.items():
            for number in range(count + 2):
                create_pod(cluster, namespace, f"{template}-{number}", template, stamped=number % 2 == 0)
        cluster.wait(lambda: len(bound(pods_in(cluster, namespace))) == sum(room.values()), "all that fit to be bound")
        pods = pods_in(cluster, namespace)
        left = {pod["metadata"]["name"] for pod in pods} - bound(pods).keys()
        assert len(left) == 4
        for name in left:
            cluster.wait(lambda name=name: "all claims" in why_pending(cluster, namespace, name), "a reason")  # type: ignore[misc]
    assert over_allocated(claims_in(cluster, namespace)) == []


def test_nothing_is_lost_or_over_allocated_while_everything_is_killed(
    cluster: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    """Shares and whole GPUs that all fit, a third deleted meanwhile; the claims are added up after every event."""
    for gib in (1, 2, 3):
        create_template(cluster, namespace, f"share-{gib}", memory=f"{gib}Gi")
    create_template(cluster, namespace, "whole", "gputile-gpu")
    count, chance, there, looks = examples(120), random.Random(38), set[str](), 0
    create_nodes(cluster, tmp_path, MORE_NODES.format(shared=count // 40, whole=max(1, count // 80)))
    names = [f"p{number}" for number in range(count)]
    templates = {name: f"share-{1 + number % 3}" if number % 20 else "whole" for number, name in enumerate(names)}
    extender, url = start_extender(cluster, settings=SETTINGS)
    options: SchedulerOptions = {"managed_resources": MANAGED, "weight": WEIGHT, "claims": True}
    with extender, cluster.start_scheduler(url, **options) as scheduler, ThreadPoolExecutor(1) as author:
        victims = [
            scheduler,
            extender,
            cluster.processes["kube-controller-manager"],
            cluster.processes["kube-apiserver"],
        ]
        for begin in range(0, count, 10):
            batch = {name: templates[name] for name in names[begin : begin + 10]}
            writing = author.submit(_write, cluster, namespace, batch, there, random.Random(begin))
            time.sleep(chance.uniform(0, 0.3))
            victim = chance.choice(victims)
            victim.kill()
            looks += _sums_are_right(cluster, namespace)
            victim.start()
            cluster.wait(cluster.api.healthy, "the API server")
            looks += _sums_are_right(cluster, namespace)
            writing.result()
            looks += _sums_are_right(cluster, namespace)
        cluster.wait(lambda: set(bound(pods_in(cluster, namespace))) == there, "all that are there to be bound")
        cluster.wait(lambda: set(gpus_of(cluster, namespace)) == there, "no claims but theirs")
        for victim in victims:
            victim.check()
    print(f"{count} pods, {count - len(there)} deleted, {count // 10} killed, claims added up {looks} times")
    assert looks > count // 10
    assert over_allocated(claims_in(cluster, namespace)) == []


def _write(
    plane: ControlPlane, namespace: str, templates: dict[str, str], there: set[str], chance: random.Random
) -> None:
    """Create the pods, and delete a third as many of all that are ``there``."""
    for name, template in templates.items():
        _insist(plane, lambda name=name, template=template: create_pod(plane, namespace, name, template))  # type: ignore[misc]
        there.add(name)
        if chance.random() < 1 / 3:
            gone = chance.choice(sorted(there))
            there.remove(gone)
            _insist(plane, lambda gone=gone: plane.nodes.delete_pod_now(namespace, gone))  # type: ignore[misc]


def _insist(plane: ControlPlane, act: Callable[[], None]) -> None:
    """Do it however often the API server goes away; what was done before counts as done."""

    def done() -> bool:
        try:
            act()
        except ApiError as error:
            if error.status not in (404, 409):
                raise
        return True

    plane.wait(done, "the API server to take a write")


def _sums_are_right(plane: ControlPlane, namespace: str) -> bool:
    """Return whether the claims could be read; what they hold fits then."""
    try:
        claims = claims_in(plane, namespace)
    except (ApiError, httpx.HTTPError):
        return False
    assert over_allocated(claims) == []
    return True
