"""Programs that people run: they get their limit, compute right, and hear nothing of gputile."""

import importlib.util
import json
import sys
from collections.abc import Callable

import pytest

from tests.native.container import IsolatedContainer

LIMIT_MIB = 8192
PIECE_MIB = 256
PYTORCH = """
import json, torch
a, b = (torch.randn(512, 512, device="cuda", dtype=torch.float64) for _ in range(2))
right = torch.allclose((a @ b).cpu(), a.cpu() @ b.cpu())
x = torch.zeros(1024, device="cuda")
graph = torch.cuda.CUDAGraph()
torch.cuda.synchronize()
with torch.cuda.graph(graph):
    y = x * 2 + 1
x.fill_(3)
graph.replay()
right = right and bool((y == 7).all())
model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.Linear(8 * 30 * 30, 10)).cuda()
loss = torch.nn.functional.cross_entropy(model(torch.randn(16, 3, 32, 32).cuda()), torch.zeros(16).long().cuda())
loss.backward()
right = right and bool(loss.isfinite())
shown, held = torch.cuda.mem_get_info()[1], []
try:
    while len(held) < 100:
        held.append(torch.empty(256 << 20, dtype=torch.uint8, device="cuda").fill_(1))
except torch.OutOfMemoryError:
    pass
torch.cuda.synchronize()
print(json.dumps([right, shown >> 20, len(held)]))
"""
JAX = """
import json, jax, jax.numpy as jnp
right = float(jax.jit(lambda x: (x @ x).sum())(jnp.ones((1024, 1024)))) == 1024.0 ** 3
shown, held = int(jax.devices()[0].memory_stats()["bytes_limit"] / 0.75), []
try:
    while len(held) < 100:
        held.append(jnp.ones((64 << 20,), dtype=jnp.float32).block_until_ready())
except jax.errors.JaxRuntimeError:
    pass
print(json.dumps([right, shown >> 20, len(held)]))
"""
CUPY = """
import json, cupy
double = cupy.RawKernel('extern "C" __global__ void f(float *x) { x[threadIdx.x] *= 2; }', "f")
x = cupy.arange(32, dtype=cupy.float32)
double((1,), (32,), (x,))
right, shown, held = float(x.sum()) == 992, cupy.cuda.runtime.memGetInfo()[1], []
try:
    while len(held) < 100:
        held.append(cupy.zeros(256 << 20, dtype=cupy.uint8))
except cupy.cuda.memory.OutOfMemoryError:
    pass
print(json.dumps([right, shown >> 20, len(held)]))
"""
ALLOCATORS = {
    "its own": {},
    "the driver's pools": {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
    "virtual memory": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
}


def judge(on_gpu: Callable[[int], IsolatedContainer], module: str, code: str, **variables: str) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    program = on_gpu(LIMIT_MIB).start([sys.executable, "-c", code], **variables)
    out, err = program.communicate(timeout=120)
    assert program.returncode == 0, err
    right, shown_mib, pieces = json.loads(out.splitlines()[-1])
    print(f"{module} {variables}: {pieces * PIECE_MIB} of {shown_mib} MiB")
    assert right
    assert shown_mib <= LIMIT_MIB
    assert 0.7 * LIMIT_MIB < pieces * PIECE_MIB < LIMIT_MIB
    assert [line for line in err.splitlines() if "gputile" in line] == []


@pytest.mark.requirement("M4")
@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_pytorch(on_gpu: Callable[[int], IsolatedContainer], allocator: str) -> None:
    judge(on_gpu, "torch", PYTORCH, **ALLOCATORS[allocator])


@pytest.mark.requirement("M4")
def test_jax(on_gpu: Callable[[int], IsolatedContainer]) -> None:
    judge(on_gpu, "jax", JAX)


@pytest.mark.requirement("M4")
def test_cupy(on_gpu: Callable[[int], IsolatedContainer]) -> None:
    judge(on_gpu, "cupy", CUPY)


@pytest.mark.requirement("G4", "M4")
@pytest.mark.parametrize(("module", "code"), [("torch", PYTORCH), ("jax", JAX), ("cupy", CUPY)])
def test_programs_that_wait_for_turns(
    beside_a_neighbour: Callable[[int], IsolatedContainer], module: str, code: str
) -> None:
    """Work, captures of graphs and allocations are as they were where turns end in the midst of them."""
    judge(beside_a_neighbour, module, code)
