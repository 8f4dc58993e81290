/* Which GPU the calling thread's calls are about. */
#ifndef GPUTILE_CURRENT_GPU_H
#define GPUTILE_CURRENT_GPU_H

#include <stdint.h>

#include "base/cuda_types.h"

/* The GPU of the current context; CUDA_SUCCESS, else what a function that needs it has to answer. */
CUresult gputile_current_gpu(int *gpu);

/* The same, with what stands for the context as the owner of allocations. */
CUresult gputile_current_gpu_and_owner(int *gpu, uint64_t *owner);

#endif
