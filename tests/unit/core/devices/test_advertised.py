"""What a node of each mode advertises, and the labels that tell its GPUs."""

import pytest

from gputile.api.well_known import Mode
from gputile.core.devices.inventory import Gpu, model_label_value, model_labels, resources_for_mode

GPUS = [
    Gpu(0, "a", 15360, "Tesla T4"),
    Gpu(1, "b", 15109, "Tesla T4"),
    Gpu(2, "c", 15360, "Tesla T4", healthy=False),
]


@pytest.mark.requirement("T1", "V1", "U1", "U2")
@pytest.mark.parametrize(
    ("mode", "unit", "memory", "core", "topology", "whole"),
    [
        (Mode.EXCLUSIVE, 1024, 0, 0, 0, 2),
        (Mode.CGPU, 1024, 15 + 14, 0, 0, 0),
        (Mode.SHARE, 128, 120 + 118, 0, 0, 0),
        (Mode.MPS, 20000, 0, 0, 0, 0),
        (Mode.CORE_MEM, 1024, 15 + 14, 200, 0, 0),
        (Mode.TOPOLOGY, 1024, 0, 0, 2, 0),
    ],
)
def test_resources_of_a_mode(mode: Mode, unit: int, memory: int, core: int, topology: int, whole: int) -> None:
    assert resources_for_mode(mode, GPUS, unit) == {
        "aliyun.com/gpu-mem": memory,
        "aliyun.com/gpu-core.percentage": core,
        "aliyun.com/gpu": topology,
        "nvidia.com/gpu": whole,
    }


def test_capacity_counts_unhealthy_gpus_too() -> None:
    assert resources_for_mode(Mode.CORE_MEM, GPUS, 1024, count_unhealthy=True) == {
        "aliyun.com/gpu-mem": 44,
        "aliyun.com/gpu-core.percentage": 300,
        "aliyun.com/gpu": 0,
        "nvidia.com/gpu": 0,
    }


@pytest.mark.parametrize(
    ("model", "value"),
    [
        ("Tesla V100-SXM2-32GB", "Tesla-V100-SXM2-32GB"),
        (" NVIDIA RTX 6000 (Ada) ", "NVIDIA-RTX-6000--Ada"),
        ("x" * 62 + " y", "x" * 62),
        ("", ""),
    ],
)
def test_model_label_value(model: str, value: str) -> None:
    assert model_label_value(model) == value


def test_labels_are_true_of_every_gpu() -> None:
    assert model_labels(GPUS) == {
        "aliyun.accelerator/nvidia_count": "3",
        "aliyun.accelerator/nvidia_name": "Tesla-T4",
        "alpha.kubernetes.io/nvidia-gpu-name": "Tesla-T4",
    }
    assert model_labels([]) == {}
    assert model_labels([Gpu(0, "a", 1024)]) == {
        "aliyun.accelerator/nvidia_count": "1",
        "aliyun.accelerator/nvidia_mem": "1024MiB",
    }
