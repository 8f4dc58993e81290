/* Answers queries for a GPU's memory with the container's limit. */
#include "hooks/visible_memory.h"

#include <stddef.h>

#include "accounting/gpus.h"
#include "accounting/limits.h"
#include "accounting/pools.h"
#include "accounting/shared_usage.h"
#include "hooks/current_gpu.h"
#include "hooks/hook_table.h"
#include "hooks/init.h"

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

void gputile_visible_memory(int gpu, uint64_t total, uint64_t available, uint64_t *shown_total, uint64_t *shown_free) {
    uint64_t limit = gputile_limits()->gpu[gpu].bytes, used = gputile_shared_usage_used((unsigned)gpu);
    *shown_total = least(limit, total);
    *shown_free = least(used < *shown_total ? *shown_total - used : 0, available);
}

GPUTILE_EXPORT CUresult cuMemGetInfo_v2(size_t *available, size_t *total) {
    uint64_t shown_total, shown_free;
    int gpu;
    CUresult result = gputile_current_gpu(&gpu);
    if (result == CUDA_SUCCESS) result = CALL_REAL(cuMemGetInfo, cuMemGetInfo_v2, available, total);
    if (result != CUDA_SUCCESS) return result;
    gputile_pools_settle();
    gputile_visible_memory(gpu, *total, *available, &shown_total, &shown_free);
    *available = shown_free, *total = shown_total;
    return CUDA_SUCCESS;
}

GPUTILE_EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    uint64_t shown_total, shown_free;
    if (!gputile_init()) return CUDA_ERROR_NO_DEVICE;
    int gpu = gputile_gpu_of_device(device);
    CUresult result = CALL_REAL(cuDeviceTotalMem, cuDeviceTotalMem_v2, bytes, device);
    if (result != CUDA_SUCCESS) return result;
    if (gpu < 0) return CUDA_ERROR_INVALID_DEVICE;
    gputile_visible_memory(gpu, *bytes, *bytes, &shown_total, &shown_free);
    *bytes = shown_total;
    return CUDA_SUCCESS;
}

/* The form of CUDA before 3.2, with sizes of 32 bits. */
GPUTILE_EXPORT CUresult cuMemGetInfo(unsigned *available, unsigned *total) {
    size_t wide_available, wide_total;
    CUresult result = cuMemGetInfo_v2(&wide_available, &wide_total);
    if (result == CUDA_SUCCESS)
        *available = (unsigned)least(wide_available, UINT32_MAX), *total = (unsigned)least(wide_total, UINT32_MAX);
    return result;
}

GPUTILE_EXPORT CUresult cuDeviceTotalMem(unsigned *bytes, CUdevice device) {
    size_t wide;
    CUresult result = cuDeviceTotalMem_v2(&wide, device);
    if (result == CUDA_SUCCESS) *bytes = (unsigned)least(wide, UINT32_MAX);
    return result;
}
