"""What is read of a real GPU: its facts, its programs, and the errors of programs."""

import subprocess
import time
from collections.abc import Callable

import pytest

from gputile.node.isolation.usage_file_reader import read_usage
from gputile.node.nvml.gpu_health import Health, XidSeen
from gputile.node.nvml.nvml_probe import NvmlSession
from tests.gpu.neighbour import used_by_pid
from tests.native.container import IsolatedContainer

MIB = 1 << 20
# A kernel that writes to an address where nothing is: XID 31, which says nothing about the GPU.
ILLEGAL_WRITE = """
kernel = b'''.version 7.0
.target sm_50
.address_size 64
.visible .entry stray() { .reg .u64 %a; mov.u64 %a, 4096; st.global.u32 [%a], 1; ret; }
'''
cuda, module, function = Cuda(), c_void_p(), c_void_p()
assert cuda("cuModuleLoadData", byref(module), ctypes.c_char_p(kernel)) == OK
assert cuda("cuModuleGetFunction", byref(function), module, ctypes.c_char_p(b"stray")) == OK
assert cuda("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, None, None, None) == OK
print(cuda("cuCtxSynchronize"))
"""
HOLDS_A_GIBIBYTE = """
cuda, pointer = Cuda(), c_uint64()
assert cuda("cuMemAlloc", byref(pointer), 1 << 30) == OK
print("held", flush=True)
import sys
sys.stdin.readline()
"""


@pytest.mark.requirement("L1")
def test_the_facts_are_those_of_nvidia_smi(nvml: NvmlSession) -> None:
    fields = "index,uuid,name,memory.total,pci.bus_id"
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    gpus = nvml.inventory().gpus
    assert [f"{gpu.index}, {gpu.uuid}, {gpu.model}, {gpu.mib}, {gpu.bus_id}" for gpu in gpus] == printed


@pytest.mark.requirement("B6")
def test_a_gpu_that_is_well_reads_well(nvml: NvmlSession) -> None:
    gpu = nvml.inventory().gpus[0]
    assert [sign for sign in nvml.examine() if getattr(sign, "trouble", None)] == []
    reading = next(each for each in nvml.readings() if each.uuid == gpu.uuid)
    assert reading.used is not None
    assert reading.used < gpu.mib * MIB


@pytest.mark.requirement("M4")
@pytest.mark.usefixtures("nvml")
def test_nvidia_counts_no_more_for_a_program_than_the_library(on_gpu: Callable[[int], IsolatedContainer]) -> None:
    container = on_gpu(4096)
    program = container.hold(HOLDS_A_GIBIBYTE)
    used, counted = used_by_pid().get(program.pid), read_usage(container.usage, 1)
    assert used is not None, "NVML lists no such process: is this a container with process IDs of its own?"
    assert counted is not None
    assert 1 << 30 < used <= counted[0].used + 16 * MIB


@pytest.mark.requirement("B6")
def test_a_program_that_writes_astray_takes_no_gpu_away(
    nvml: NvmlSession, on_gpu: Callable[[int], IsolatedContainer]
) -> None:
    """The driver reports XID 31, and the GPU stays with its node."""
    nvml.watch_health(0)
    assert on_gpu(2048).python(ILLEGAL_WRITE) == "700\n"  # CUDA_ERROR_ILLEGAL_ADDRESS
    signs, end = nvml.watch_health(1), time.monotonic() + 10
    while not signs and time.monotonic() < end:
        signs = nvml.watch_health(1)
    uuid = nvml.inventory().gpus[0].uuid
    assert XidSeen(uuid, 31) in signs
    assert Health().after(signs, 0.0).healthy(uuid)
