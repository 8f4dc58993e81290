"""The GPUs as CDI devices."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputile.node.agent.cdi import CdiFiles, choose, read_capabilities, specification
from gputile.node.nvml.probe import Mig, MigInstance, ProbedGpu, ProbedMachine

GPUS = tuple(ProbedGpu(i, f"GPU-{i}", "T4", 15360, f"0000:0{i}:00.0", minor=3 + i) for i in range(2))
MACHINE = ProbedMachine(gpus=GPUS, driver="570.133.20")


@pytest.mark.requirement("G3")
def test_a_split_gpu_is_reached_by_its_instances_alone() -> None:
    """An instance needs the GPU's node and the capabilities of its GPU instance and its compute instance."""
    instances = (MigInstance("MIG-a", "3g.20gb", 20096, 2, 0), MigInstance("MIG-b", "3g.20gb", 20096, 9, 0))
    gpu = ProbedGpu(0, "GPU-0", "A100", 40960, "0000:01:00.0", minor=5, mig=Mig.ON, instances=instances)
    text = "config 1\nmonitor 2\ngpu5/gi2/access 21\ngpu5/gi2/ci0/access 22\ngpu0/gi9/ci0/access 23\nwhat\n\xb2 \xb2\n"
    spec = specification(ProbedMachine(gpus=(gpu,)), [], [], read_capabilities(text))
    assert [device["name"] for device in spec["devices"]] == ["MIG-a"]
    paths = [node["path"] for node in spec["devices"][0]["containerEdits"]["deviceNodes"]]
    assert paths == ["/dev/nvidia5", "/dev/nvidia-caps/nvidia-cap21", "/dev/nvidia-caps/nvidia-cap22"]


@pytest.mark.requirement("G3")
def test_an_instance_of_an_old_driver_is_no_device_and_leaves_the_others_readable() -> None:
    """Drivers before R470 name it MIG-<GPU>/<instance>/<instance>; a name with "/" makes runtimes refuse the file."""
    instances = tuple(MigInstance(uuid, "3g.20gb", 20096, 2, 0) for uuid in ("MIG-GPU-0/2/0", "MIG-a"))
    gpu = ProbedGpu(0, "GPU-0", "A100", 40960, "0000:01:00.0", minor=5, mig=Mig.ON, instances=instances)
    capabilities = read_capabilities("gpu5/gi2/access 21\ngpu5/gi2/ci0/access 22\n")
    spec = specification(ProbedMachine(gpus=(gpu, GPUS[0])), [], [], capabilities)
    assert [device["name"] for device in spec["devices"]] == ["MIG-a", "GPU-0"]


@given(st.text())
def test_whatever_the_driver_says_of_its_capabilities_can_be_read(text: str) -> None:
    assert all(minor >= 0 for minor in read_capabilities(text).values())


def test_nvidias_own_specification_goes_first_and_nothing_is_made_up() -> None:
    known = frozenset({"nvidia.com/gpu=GPU-0", "gputile.io/gpu=GPU-0", "gputile.io/gpu=GPU-1"})
    assert choose(["GPU-0", "GPU-1"], known) == ("nvidia.com/gpu=GPU-0", "gputile.io/gpu=GPU-1")
    assert choose(["GPU-0", "GPU-2"], known) == ()


def test_the_file_follows_the_machine(tmp_path: Path) -> None:
    (tmp_path / "usr/lib64").mkdir(parents=True)
    (tmp_path / "usr/lib64/libcuda.so.570.133.20").touch()
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia-uvm").touch()
    (tmp_path / "proc/driver/nvidia-caps").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia-caps/mig-minors").write_text("gpu3/gi1/access 30\ngpu3/gi1/ci0/access 31\n")
    files = CdiFiles(tmp_path / "cdi", tmp_path, tmp_path / "dev")
    files.refresh(MACHINE)
    spec = json.loads((tmp_path / "cdi/gputile.io-gpu.json").read_text())
    assert [node["path"] for node in spec["containerEdits"]["deviceNodes"]] == ["/dev/nvidia-uvm"]
    assert spec["containerEdits"]["mounts"][0]["hostPath"] == "/usr/lib64/libcuda.so.570.133.20"
    assert files.devices(["GPU-1"]) == ("gputile.io/gpu=GPU-1",)
    assert files.devices(["GPU-7"]) == ()
    split = replace(GPUS[0], mig=Mig.ON, instances=(MigInstance("MIG-a", "7g.40gb", 40192, 1, 0),))
    files.refresh(ProbedMachine(gpus=(split,), driver="570.133.20"))
    assert files.devices(["MIG-a"]) == ("gputile.io/gpu=MIG-a",)
    assert files.devices(["GPU-0"]) == ()
    files.refresh(ProbedMachine(gpus=GPUS[:1], driver="570.133.20"))
    assert files.devices(["GPU-1"]) == ()


def test_what_others_left_beside_it_makes_no_difference(tmp_path: Path) -> None:
    """A link to nothing, a directory, and a pipe that nobody writes to, which would be read for ever."""
    (tmp_path / "absent.json").symlink_to(tmp_path / "nothing")
    (tmp_path / "directory.json").mkdir()
    os.mkfifo(tmp_path / "pipe.json")
    with (tmp_path / "long.json").open("wb") as file:
        file.truncate(1 << 40)
    (tmp_path / "nvidia.json").write_text('{"kind": "nvidia.com/gpu", "devices": [{"name": "GPU-1"}]}')
    files = CdiFiles(tmp_path, tmp_path)
    files.refresh(MACHINE)
    assert files.devices(["GPU-0"]) == ("gputile.io/gpu=GPU-0",)
    assert files.devices(["GPU-1"]) == ("nvidia.com/gpu=GPU-1",)
