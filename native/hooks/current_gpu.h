/* The current GPU of the calling thread. */
#ifndef GPUTILE_CURRENT_GPU_H
#define GPUTILE_CURRENT_GPU_H

#include <stdint.h>

#include "base/cuda_types.h"

/* The GPU of the current context. Returns CUDA_SUCCESS, or the error that the calling function must return. */
CUresult gputile_current_gpu(int *gpu);

/* Like gputile_current_gpu, and also sets the owner of allocations in the current context. */
CUresult gputile_current_gpu_and_owner(int *gpu, uint64_t *owner);

#endif
