"""The labels that tell a node's GPUs."""

import re
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputile.api.well_known import MODEL_COUNT_PREFIX
from gputile.core.devices.inventory import Gpu
from gputile.node.agent.decisions.publishing.published import is_ours, node_labels

LABEL_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")  # Kubernetes' own rule


def gpus(*kinds: tuple[str, int]) -> list[Gpu]:
    return [Gpu(index=i, uuid=f"GPU-{i}", model=model, mib=mib) for i, (model, mib) in enumerate(kinds)]


def test_gpus_of_one_kind_are_told_as_documented() -> None:
    assert node_labels(gpus(*[("Tesla V100-SXM2-32GB", 32510)] * 8)) == {
        "aliyun.accelerator/nvidia_name": "Tesla-V100-SXM2-32GB",
        "aliyun.accelerator/nvidia_mem": "32510MiB",
        "aliyun.accelerator/nvidia_count": "8",
        "alpha.kubernetes.io/nvidia-gpu-name": "Tesla-V100-SXM2-32GB",
        "model.gputile.io/Tesla-V100-SXM2-32GB": "8",
    }


def test_gpus_that_differ_are_told_without_lying() -> None:
    assert node_labels(gpus(("Tesla T4", 15109), ("Tesla V100-PCIE-16GB", 16130), ("Tesla T4", 15109))) == {
        "aliyun.accelerator/nvidia_count": "3",
        "model.gputile.io/Tesla-T4": "2",
        "model.gputile.io/Tesla-V100-PCIE-16GB": "1",
    }


def test_one_model_in_two_sizes_has_a_name_and_no_memory() -> None:
    labels = node_labels(gpus(("NVIDIA A100-PCIE", 40960), ("NVIDIA A100-PCIE", 81920)))
    assert labels["aliyun.accelerator/nvidia_name"] == "NVIDIA-A100-PCIE"
    assert "aliyun.accelerator/nvidia_mem" not in labels


def test_a_node_without_gpus_has_no_label() -> None:
    assert node_labels([]) == {}


@pytest.mark.parametrize("name", ["Tesla K80", "NVIDIA A100-SXM4-80GB", "NVIDIA GeForce RTX 2080 Ti", "NVIDIA H200"])
def test_the_name_is_what_sed_makes_of_nvidia_smis(name: str) -> None:
    made = subprocess.run(["sed", "s/ /-/g"], input=name, text=True, capture_output=True, check=True).stdout
    assert node_labels(gpus((name, 1)))["aliyun.accelerator/nvidia_name"] == made


@given(st.lists(st.tuples(st.text(max_size=96), st.integers(1, 2**24)), max_size=8))
def test_every_label_is_valid_and_ours_whatever_the_driver_says(kinds: list[tuple[str, int]]) -> None:
    for key, value in node_labels(gpus(*kinds)).items():
        assert is_ours(key)
        assert LABEL_VALUE.fullmatch(value)
        if key.startswith(MODEL_COUNT_PREFIX):
            assert LABEL_VALUE.fullmatch(key.removeprefix(MODEL_COUNT_PREFIX))


@pytest.mark.parametrize("label", ["kubernetes.io/hostname", "ack.node.gpu.schedule", "nvidia.com/gpu.product"])
def test_nobody_elses_label_is_ours(label: str) -> None:
    assert not is_ours(label)
