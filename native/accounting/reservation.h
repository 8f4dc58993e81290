/* Enforces this container's memory limits: reserves memory of a GPU, or refuses it. */
#ifndef GPUTILE_RESERVATION_H
#define GPUTILE_RESERVATION_H

#include <stdint.h>

#include "base/cuda_types.h"

/* Reserve `bytes` on a GPU, atomically for the whole allocation. Returns CUDA_SUCCESS or CUDA_ERROR_OUT_OF_MEMORY. */
CUresult gputile_reserve(int gpu, uint64_t bytes);
void gputile_give_back(int gpu, uint64_t bytes);

/* Count a program's request that was finally refused. Returns CUDA_ERROR_OUT_OF_MEMORY. */
CUresult gputile_refuse(int gpu);

/* The memory that a request for linear memory needs. The driver allocates blocks of 2 MiB, which small requests
 * share. */
uint64_t gputile_footprint(uint64_t bytes);

#endif
