"""Says what a client of NVIDIA's MPS is given, and which control daemon serves it.

Source: NVIDIA's "Multi-Process Service", chapters "Environment Variables" and "Device Memory Limit".
"""

import hashlib
from typing import Final

PIPE_ENV: Final = "CUDA_MPS_PIPE_DIRECTORY"
LIMIT_ENV: Final = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
THREADS_ENV: Final = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
CONTAINER_PIPES: Final = "/tmp/nvidia-mps"  # noqa: S108 - where CUDA looks unless it is told otherwise
SINGLE: Final = "GPU-"  # what NVIDIA begins a GPU's UUID with
SEVERAL: Final = "cards-"

GpuUuids = tuple[str, ...]
"""The UUIDs of the GPUs that one daemon serves, in the order of their indices."""


def daemon_name(gpus: GpuUuids) -> str:
    """Return the name of a daemon's directory: the GPU's UUID, or a digest of several."""
    return gpus[0] if len(gpus) == 1 else f"{SEVERAL}{hashlib.sha256(' '.join(gpus).encode()).hexdigest()[:32]}"
