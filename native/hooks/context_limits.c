/* Counts the memory that a context reserves for its limits (cuCtxSetLimit). */
#define _GNU_SOURCE

#include "accounting/allocation_table.h"
#include "accounting/pools.h"
#include "accounting/reservation.h"
#include "base/driver.h"
#include "base/driver_lock.h"
#include "base/fork_handlers.h"
#include "hooks/current_gpu.h"
#include "hooks/hook_table.h"

/* Locked while a limit is changed and counted. */
static struct gputile_driver_lock limit_lock = GPUTILE_DRIVER_LOCK;

/* The memory that kernels may use later because of a limit. No call at which it could be counted allocates it. */
static uint64_t set_aside(int limit, size_t value, CUdevice device) {
    enum { DEFAULT_STACK = 1024 };
    int processors = 0, threads = 0;
    uint64_t bytes;
    if (limit == CU_LIMIT_MALLOC_HEAP_SIZE || limit == CU_LIMIT_PRINTF_FIFO_SIZE) return value;
    if (limit != CU_LIMIT_STACK_SIZE || value <= DEFAULT_STACK) return 0;
    gputile_driver()->cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
    gputile_driver()->cuDeviceGetAttribute(&threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, device);
    return __builtin_mul_overflow(value - DEFAULT_STACK, (uint64_t)processors * (uint64_t)threads, &bytes) ? UINT64_MAX
                                                                                                           : bytes;
}

CUresult cuCtxSetLimit(int limit, size_t value);

/* Only the difference is reserved or released, because the new size replaces the old one. */
static CUresult resize(int limit, size_t value, int gpu, uint64_t bytes, uint64_t context) {
    struct gputile_allocation held = {.bytes = 0};
    const uint64_t key = context + (uint64_t)limit;
    bool had = gputile_allocation_find(GPUTILE_HEAP, key, &held);
    uint64_t more = bytes > held.bytes ? bytes - held.bytes : 0;
    CUresult result = more ? gputile_reserve_or_trim(gpu, more) : CUDA_SUCCESS;
    if (result != CUDA_SUCCESS) return result;
    result = CALL_REAL(cuCtxSetLimit, cuCtxSetLimit, limit, value);
    if (result != CUDA_SUCCESS) return gputile_give_back(gpu, more), result;
    if (had && !gputile_allocation_take(GPUTILE_HEAP, key, &held))
        return gputile_give_back(gpu, more), result; /* the context was destroyed */
    if (held.bytes > bytes) gputile_give_back(gpu, held.bytes - bytes);
    if (bytes) gputile_allocation_add((struct gputile_allocation){GPUTILE_HEAP, key, gpu, bytes, context, 1});
    return result;
}

GPUTILE_EXPORT CUresult cuCtxSetLimit(int limit, size_t value) {
    uint64_t context;
    CUdevice device;
    int gpu;
    CUresult result = gputile_current_gpu_and_owner(&gpu, &context);
    if (result == CUDA_SUCCESS) result = gputile_driver()->cuCtxGetDevice(&device);
    if (result != CUDA_SUCCESS) return result;
    gputile_driver_lock(&limit_lock);
    result = resize(limit, value, gpu, set_aside(limit, value, device), context);
    gputile_driver_unlock(&limit_lock);
    return result;
}

static void in_child(void) { gputile_driver_lock_in_child(&limit_lock); }

static const struct gputile_fork_handlers handlers = {.order = GPUTILE_FORK_CONTEXT_LIMITS, .in_child = in_child};
static const struct gputile_fork_handlers *const registered GPUTILE_FORK_HANDLERS = &handlers;
