"""NVIDIA's specification of the GPUs, as the agent and the container runtime read it."""

import os
from pathlib import Path

import pytest

from gputile.node.agent.cdi import CdiFiles, nvidia_devices

# As nvidia-ctk writes it
YAML = b"""---
cdiVersion: 0.5.0
containerEdits:
  env:
  - NVIDIA_VISIBLE_DEVICES=void
  mounts:
  - {containerPath: /usr/lib/libcuda.so.1, hostPath: /usr/lib/libcuda.so.1, options: [ro, bind]}
devices:
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
  name: "0"
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
  name: GPU-0
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia-caps/nvidia-cap21
  name: MIG-a
kind: nvidia.com/gpu
"""
JSON = b'{"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [{"name": "GPU-1", "containerEdits": {}}]}'


@pytest.mark.requirement("G3")
@pytest.mark.parametrize(("text", "names"), [(YAML, ("0", "GPU-0", "MIG-a")), (JSON, ("GPU-1",))])
def test_only_a_file_that_the_runtime_can_read_names_devices(text: bytes, names: tuple[str, ...]) -> None:
    assert nvidia_devices(text) == names
    assert nvidia_devices(text.replace(b"nvidia.com/gpu", b"management.nvidia.com/gpu")) == ()
    assert nvidia_devices(text.replace(b"GPU-", b"\xff")) == ()
    for end in range(len(text) - 5):  # while it is written; the last key of the YAML is the kind
        assert nvidia_devices(text[:end]) == ()


def test_the_names_follow_the_files(tmp_path: Path) -> None:
    directory, file = tmp_path / "cdi", tmp_path / "cdi" / "nvidia.yaml"
    files = CdiFiles(directory)
    assert files.devices(["GPU-0"]) == ()
    directory.mkdir()
    file.write_bytes(YAML)
    assert files.devices(["MIG-a", "GPU-0"]) == ("nvidia.com/gpu=MIG-a", "nvidia.com/gpu=GPU-0")
    assert files.devices(["GPU-0", "GPU-1"]) == ()
    (directory / "more.json").write_bytes(JSON)
    assert files.devices(["GPU-0", "GPU-1"]) == ("nvidia.com/gpu=GPU-0", "nvidia.com/gpu=GPU-1")
    before = file.stat()
    file.write_bytes(YAML.replace(b"GPU-0", b"GPU-2"))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert files.devices(["GPU-0"]) == ("nvidia.com/gpu=GPU-0",), "a file without a change was read again"
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert (files.devices(["GPU-0"]), files.devices(["GPU-2"])) == ((), ("nvidia.com/gpu=GPU-2",))
    file.unlink()
    assert files.devices(["GPU-2"]) == ()


def test_a_runtime_resolves_no_name_that_is_defined_twice(tmp_path: Path) -> None:
    """An administrator's file beside the toolkit's own; the runtime then ignores the devices of both."""
    (tmp_path / "nvidia.yaml").write_bytes(YAML)
    (tmp_path / "nvidia.json").write_bytes(JSON.replace(b"GPU-1", b"GPU-0"))
    assert CdiFiles(tmp_path).devices(["GPU-0"]) == ()
    assert CdiFiles(tmp_path).devices(["MIG-a"]) == ("nvidia.com/gpu=MIG-a",)


def test_what_others_left_beside_it_makes_no_difference(tmp_path: Path) -> None:
    """A link to nothing, a directory, and a pipe that nobody writes to, which would be read for ever."""
    (tmp_path / "absent.json").symlink_to(tmp_path / "nothing")
    (tmp_path / "directory.yaml").mkdir()
    os.mkfifo(tmp_path / "pipe.json")
    with (tmp_path / "long.yaml").open("wb") as file:
        file.truncate(1 << 40)
    (tmp_path / "nvidia.json").write_bytes(JSON)
    assert CdiFiles(tmp_path).devices(["GPU-1"]) == ("nvidia.com/gpu=GPU-1",)
