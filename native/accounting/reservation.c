/* Compares the memory of all processes of the container with its limit, by the shared usage. */
#include "accounting/reservation.h"

#include "accounting/limits.h"
#include "accounting/shared_usage.h"

/* The driver rounds requests for linear memory below 1 MiB up to 512 bytes, and others up to blocks of 2 MiB. */
enum { SMALL = 1 << 20, GRAIN = 512, BLOCK = 2 << 20 };

CUresult gputile_reserve(int gpu, uint64_t bytes) {
    const struct gputile_gpu *limit = &gputile_limits()->gpu[gpu];
    return gputile_shared_usage_reserve((unsigned)gpu, bytes, limit->bytes) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void gputile_give_back(int gpu, uint64_t bytes) { gputile_shared_usage_return((unsigned)gpu, bytes); }

CUresult gputile_refuse(int gpu) {
    gputile_shared_usage_refused((unsigned)gpu);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

uint64_t gputile_footprint(uint64_t bytes) {
    uint64_t unit = bytes < SMALL ? GRAIN : BLOCK;
    return bytes > UINT64_MAX - unit ? UINT64_MAX : (bytes + unit - 1) / unit * unit;
}
