"""What fits a node, and the words for what does not."""

from collections.abc import Sequence

import pytest

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Node, Pod
from gputile.core.devices.request import Request, RequestKind, Shape
from gputile.core.ledger.booking import Booking
from gputile.core.refusal import FitRule, Refusal, grouped
from gputile.core.scheduling.placement_engine import PlacementEngine
from tests.fakes.corebuilders import book, gpu_node, ledger_of, pod, request_of, share

Held = tuple[int, int, int, str]  # GPU, MiB, percent, namespace


def refuse(
    node: Node, asking: Pod, held: Sequence[Held] = (), unit: int = 1024, max_pods_per_gpu: int = 16
) -> Refusal[FitRule] | None:
    ledger = ledger_of(node, configuration=Configuration(max_pods_per_gpu=max_pods_per_gpu))
    for i, (gpu, mib, percent, namespace) in enumerate(held):
        book(ledger, f"h{i}", "n", share(f"GPU-n-{gpu}", mib, percent), namespace=namespace)
    engine, request = PlacementEngine(ledger), request_of(asking, unit)
    why = engine.refusal(request, "n")
    assert engine.filter(request, ["n"]).feasible == (["n"] if why is None else []), "the kernels say otherwise"
    return why


MODEL, ISOLATION = "gputile.io/gpu-model", "gputile.io/isolation"
WHOLE, LEGACY, TOPOLOGY = "nvidia.com/gpu", "alpha.kubernetes.io/nvidia-gpu", "aliyun.com/gpu"
GIB = 1024


@pytest.mark.requirement("U1", "M10", "M8", "U7", "G5", "M1", "B6", "M2", "T3", "U5", "G6")
@pytest.mark.parametrize(
    ("node", "asking", "held", "rule", "text"),
    [
        pytest.param(
            gpu_node(mode="cgpu", sizes=[15360, 15360]),
            pod(mem=10),
            [(0, 14 * GIB, 0, "a"), (1, 12 * GIB, 0, "a")],
            FitRule.GPUS_TAKEN,
            "GPU 1 has 3 GiB of 15 GiB free; the pod needs 10 GiB on one GPU",
            id="U1 the GPU that comes closest",
        ),
        pytest.param(
            gpu_node(mode="cgpu", sizes=[15360] * 3),
            pod(mem=20, count=2),
            [(0, 14 * GIB, 0, "a"), (1, 12 * GIB, 0, "a")],
            FitRule.GPUS_TAKEN,
            "GPU 1 has 3 GiB of 15 GiB free; the pod needs 10 GiB on each of 2 GPUs (1 of 3 GPUs have room for it)",
            id="M10 on each of the GPUs",
        ),
        pytest.param(
            gpu_node(mode="core_mem", sizes=[15360]),
            pod(mem=1, core=50),
            [(0, GIB, 60, "a")],
            FitRule.GPUS_TAKEN,
            "GPU 0 has 40 of 100 percent of compute free; the pod needs 50 on one GPU",
            id="M8 compute",
        ),
        pytest.param(
            gpu_node(mode="cgpu", sizes=[15360]),
            pod(mem=1),
            [(0, 64, 0, "a")] * 16,
            FitRule.GPUS_TAKEN,
            "GPU 0 holds 16 pods, the most that a GPU may hold here (16)",
            id="U7 the 17th pod",
        ),
        pytest.param(
            gpu_node(mode="share", sizes=[15360]),
            pod(mem=1, namespace="b"),
            [(0, GIB, 0, "a")],
            FitRule.GPUS_TAKEN,
            "GPU 0 is used by pods of another trust group, and mode share does not isolate memory",
            id="G5 another group",
        ),
        pytest.param(
            gpu_node(sizes=[15360] * 4),
            pod(asks={WHOLE: 2}),
            [(0, GIB, 0, "a"), (1, GIB, 0, "a"), (2, GIB, 0, "a")],
            FitRule.GPUS_TAKEN,
            "1 of 4 GPUs is free; the pod needs 2",
            id="M1 whole GPUs",
        ),
        pytest.param(
            gpu_node(mode="cgpu", sizes=[15360, 8192]),
            pod(mem=16),
            [],
            FitRule.TOO_LARGE,
            "its largest GPU has 15 GiB; the pod needs 16 GiB on one GPU",
            id="U1 larger than any GPU",
        ),
        pytest.param(
            gpu_node(mode="cgpu", sizes=[15360, 8192]),
            pod(mem=24, count=2),
            [],
            FitRule.TOO_LARGE,
            "1 of its 2 GPUs is large enough, GPU 1 has 8 GiB; the pod needs 12 GiB on each of 2 GPUs",
            id="M10 mixed GPUs",
        ),
        pytest.param(
            gpu_node(sizes=[15360] * 2, unhealthy=[1]),
            pod(asks={LEGACY: 2}),
            [],
            FitRule.TOO_FEW,
            "it has 2 GPUs, 1 of them unhealthy; the pod needs 2",
            id="B6 unhealthy",
        ),
        pytest.param(
            gpu_node(mode="cgpu"),
            pod(asks={WHOLE: 1}),
            [],
            FitRule.MODE,
            "its mode cgpu serves aliyun.com/gpu-mem alone; the pod asks for nvidia.com/gpu",
            id="M2 shared",
        ),
        pytest.param(
            gpu_node(mode="core_mem"),
            pod(mem=1),
            [],
            FitRule.MODE,
            "its mode core_mem serves aliyun.com/gpu-mem together with aliyun.com/gpu-core.percentage; "
            "the pod asks for aliyun.com/gpu-mem",
            id="M8 memory alone",
        ),
        pytest.param(
            gpu_node(mode="cgpu", unit_mib=128),
            pod(mem=1),
            [],
            FitRule.UNIT,
            "its memory unit is still 128 MiB; the pod's unit is the configured 1024 MiB, "
            "which the node's agent has not applied yet",
            id="U5 a node that is behind",
        ),
        pytest.param(
            gpu_node(mode="fast"),
            pod(mem=1),
            [],
            FitRule.BROKEN,
            "its label ack.node.gpu.schedule is 'fast'; valid are default, cgpu, core_mem, share, mps, topology",
            id="M2 unknown mode",
        ),
        pytest.param(
            gpu_node(inventory=""),
            pod(mem=1),
            [],
            FitRule.NO_GPUS,
            "it has no GPUs that gputile knows; is gputile's agent running there?",
            id="no agent",
        ),
        pytest.param(
            gpu_node(mode="cgpu", models=["NVIDIA A10", "NVIDIA A100 80GB PCIe"]),
            pod(mem=6, count=3, annotations={MODEL: "NVIDIA A100 80GB PCIe"}),
            [],
            FitRule.TOO_FEW,
            "2 of its 4 GPUs are NVIDIA-A100-80GB-PCIe; the pod needs 3",
            id="a model of which the node has too few GPUs",
        ),
        pytest.param(
            gpu_node(inventory="", allocatable={WHOLE: "8"}),
            pod(asks={WHOLE: 1}, annotations={MODEL: "NVIDIA-A10"}),
            [],
            FitRule.MODE,
            "another device plugin manages its GPUs; the pod needs NVIDIA-A10",
            id="a model among GPUs of another device plugin",
        ),
        pytest.param(
            gpu_node(mode="share"),
            pod(mem=1, annotations={ISOLATION: "memory"}),
            [],
            FitRule.MODE,
            "memory is not limited on its GPUs (mode share); the pod has gputile.io/isolation",
            id="isolation where nothing limits memory",
        ),
        pytest.param(
            gpu_node(replicas=2),
            pod(asks={WHOLE: 1}, annotations={ISOLATION: "memory, compute"}),
            [],
            FitRule.MODE,
            "memory is not limited on its GPUs (time-slicing); the pod has gputile.io/isolation",
            id="isolation where GPUs are given in turns",
        ),
    ],
)
def test_refusals_name_the_gpu_what_it_has_and_what_is_missing(
    node: Node, asking: Pod, held: Sequence[Held], rule: FitRule, text: str
) -> None:
    why = refuse(node, asking, held)
    assert why is not None
    assert (why.rule, why.text) == (rule, text)


def test_a_pod_on_unknown_gpus_closes_the_node_and_is_named() -> None:
    ledger = ledger_of(gpu_node(mode="cgpu"))
    ledger.assume(Booking("u", "ns", "lost", "n", "ns", None, assumed_at=0.0))
    why = PlacementEngine(ledger).refusal(request_of(pod(mem=1)), "n")
    assert why is not None
    assert why.rule is FitRule.UNPLACED
    assert why.text == "pod ns/lost is on unknown GPUs; the node's agent has to report them, or the pod has to end"


FITTING = [
    pytest.param(gpu_node(mode="cgpu", sizes=[15360]), pod(mem=15), [], id="U1 exactly a GPU"),
    pytest.param(gpu_node(mode="cgpu", sizes=[15360]), pod(mem=3), [(0, 12 * GIB, 0, "b")], id="M4 others' pods"),
    pytest.param(
        gpu_node(mode="core_mem", sizes=[15360]), pod(mem=1, core=40), [(0, GIB, 60, "a")], id="M8 100 percent"
    ),
    pytest.param(gpu_node(mode="cgpu", sizes=[15360]), pod(mem=1), [(0, 64, 0, "a")] * 15, id="U7 the 16th pod"),
    pytest.param(gpu_node(mode="share", sizes=[15360]), pod(mem=1), [(0, 64, 0, "default")] * 30, id="M6 own group"),
    pytest.param(gpu_node(mode="share", sizes=[15360] * 2), pod(mem=1), [(0, 64, 0, "a")], id="G5 an empty GPU"),
    pytest.param(
        gpu_node(mode="cgpu", sizes=[15360]), pod(mem=1), [(0, 64, 70, "a")] * 2, id="M4 compute does not count"
    ),
    pytest.param(gpu_node(mode="mps"), pod(mem=1), [], id="M7 mps"),
    pytest.param(gpu_node(mode="mps"), pod(mem=1, annotations={ISOLATION: "memory"}), [], id="isolated by mps"),
    pytest.param(gpu_node(), pod(asks={WHOLE: 1}, annotations={ISOLATION: "memory"}), [], id="isolated, being alone"),
    pytest.param(gpu_node(mode="topology"), pod(asks={TOPOLOGY: 4}), [], id="T1 all GPUs"),
    pytest.param(gpu_node(mode="default"), pod(asks={LEGACY: 4}), [], id="L3 the old name"),
    pytest.param(
        gpu_node(inventory="", allocatable={WHOLE: "8"}), pod(asks={WHOLE: 64}), [], id="G6 another plugin counts"
    ),
]


@pytest.mark.requirement("U1", "M8", "U7", "M6", "G5", "M4", "M7", "T1", "L3", "G6")
@pytest.mark.parametrize(("node", "asking", "held"), FITTING)
def test_what_fits_is_not_refused(node: Node, asking: Pod, held: Sequence[Held]) -> None:
    assert refuse(node, asking, held) is None


@pytest.mark.requirement("G3", "G5")
def test_a_gpu_in_turns_is_for_pods_of_one_trust_group_and_so_many_of_them() -> None:
    """What the node would refuse is refused here first, and the reason names the GPU."""
    ledger = ledger_of(gpu_node("n", sizes=(15360, 15360), replicas=2))
    book(ledger, "a0", "n", share("GPU-n-0", 15360, 100), namespace="a", whole=True)
    book(ledger, "a1", "n", share("GPU-n-0", 15360, 100), namespace="a", whole=True)
    book(ledger, "b0", "n", share("GPU-n-1", 15360, 100), namespace="b", whole=True)
    engine = PlacementEngine(ledger)

    def refused(namespace: str, gpus: int = 1) -> str:
        request = Request(Shape(RequestKind.WHOLE, gpus, trust_group=namespace), 1024, ())
        why = engine.refusal(request, "n")
        assert (engine.filter(request, ["n"]).feasible == ["n"]) == (why is None)
        return why.text if why else ""

    assert refused("b") == ""
    stranger = "GPU 1 is used by pods of another trust group, and time-slicing does not isolate memory"
    assert refused("a") == refused("c") == stranger
    book(ledger, "b1", "n", share("GPU-n-1", 15360, 100), namespace="b", whole=True)
    assert refused("b") == "GPU 1 has no time slice left (2 are in use)"
    assert refused("b", 3) == "it has 2 GPUs; the pod needs 3 different ones"


SAID = [("a", "full"), ("b", "small"), ("c", "full"), ("d", "full"), ("e", "full")]


@pytest.mark.requirement("B4")
def test_equal_reasons_are_one_text_in_any_order() -> None:
    assert grouped(SAID, 5, 10) == ["4 nodes (a, c, d, ...): full", "b: small"]
    assert grouped([("b", "full"), ("d", "full"), ("c", "full"), ("a", "full")], 4, 10) == [
        "4 nodes (a, b, c, ...): full"
    ]


@pytest.mark.requirement("B4")
def test_what_is_left_out_is_counted() -> None:
    assert grouped(SAID, 9, 1) == ["4 nodes (a, c, d, ...): full", "and 5 more"]
