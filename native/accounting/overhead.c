/* Measures the memory that a call has allocated, through NVML or the GPU's free memory, and charges it. */
#include "accounting/overhead.h"

#include <stdbool.h>

#include "accounting/gpus.h"
#include "accounting/limits.h"
#include "accounting/nvml_client.h"
#include "accounting/pools.h"
#include "accounting/reservation.h"
#include "accounting/shared_usage.h"
#include "base/driver.h"
#include "base/fork_handlers.h"

#define UNKNOWN_BYTES UINT64_MAX /* the usage file cannot be locked */
enum { MOST_TRIES = 4 };

static uint64_t charged[GPUTILE_MOST_GPUS]; /* the bytes that this process was charged so far */

static bool free_now(CUdevice device, int gpu, uint64_t *bytes) {
    CUdevice current;
    size_t available, total;
    if (gputile_driver()->cuCtxGetDevice(&current) == CUDA_SUCCESS && current == device &&
        gputile_driver()->cuMemGetInfo(&available, &total) == CUDA_SUCCESS) {
        *bytes = available;
        return true;
    }
    return gputile_nvml_free(gputile_limits()->gpu[gpu].uuid, bytes);
}

/* Set `bytes` to this process's memory as NVML reports it, and `held` to the memory that this library counts. */
static bool own_now(int gpu, uint64_t *held, uint64_t *bytes) {
    for (int tries = 0; tries < MOST_TRIES; tries++) {
        *held = gputile_shared_usage_own((unsigned)gpu);
        if (!gputile_nvml_own(gputile_limits()->gpu[gpu].uuid, bytes)) return false;
        if (gputile_shared_usage_own((unsigned)gpu) == *held) return true;
    }
    return false;
}

/* Before a context is created: read this process's memory, and reserve the minimum for a context. */
static CUresult begin_context(struct gputile_overhead *overhead) {
    const uint64_t least = gputile_shared_usage_context((unsigned)overhead->gpu);
    /* NVML must list this process if it has memory, and only then. Otherwise the list is that of other processes. */
    overhead->own_known = own_now(overhead->gpu, &overhead->held_before, &overhead->own_before) &&
                          !overhead->own_before == !overhead->held_before;
    const CUresult result = gputile_reserve_or_trim(overhead->gpu, least);
    if (result == CUDA_SUCCESS) overhead->reserved = least;
    return result;
}

CUresult gputile_overhead_begin(struct gputile_overhead *overhead, CUdevice device, enum gputile_overhead_kind kind) {
    *overhead = (struct gputile_overhead){.device = device, .gpu = gputile_gpu_of_device(device)};
    if (overhead->gpu < 0) return CUDA_SUCCESS;
    overhead->used_before = gputile_shared_usage_used((unsigned)overhead->gpu);
    if (!gputile_limits()->overhead_bytes || overhead->used_before == UNKNOWN_BYTES ||
        !free_now(device, overhead->gpu, &overhead->free_before))
        overhead->gpu = -1;
    else if (kind == GPUTILE_OVERHEAD_CONTEXT) return begin_context(overhead);
    return CUDA_SUCCESS;
}

void gputile_overhead_cancel(const struct gputile_overhead *overhead) {
    if (overhead->gpu >= 0) gputile_give_back(overhead->gpu, overhead->reserved);
}

/* The memory that the driver has allocated since the measurement began, and whether the amount is exact. The amount is
 * negative if other processes have freed more memory in the meantime. */
static int64_t gone(const struct gputile_overhead *overhead, bool *exactly) {
    uint64_t now, held;
    const int64_t reserved = (int64_t)overhead->reserved;
    *exactly = overhead->own_known && own_now(overhead->gpu, &held, &now) && now;
    if (*exactly) return (int64_t)(now - overhead->own_before) - (int64_t)(held - overhead->held_before) + reserved;
    uint64_t used = gputile_shared_usage_used((unsigned)overhead->gpu);
    if (used == UNKNOWN_BYTES || !free_now(overhead->device, overhead->gpu, &now)) return 0;
    return (int64_t)(overhead->free_before - now) - (int64_t)(used - overhead->used_before) + reserved;
}

/* Reserve `bytes` in all. `overhead->reserved` of them are already reserved. */
static CUresult reserve_in_all(const struct gputile_overhead *overhead, uint64_t bytes) {
    if (bytes <= overhead->reserved) return gputile_give_back(overhead->gpu, overhead->reserved - bytes), CUDA_SUCCESS;
    const CUresult result = gputile_reserve_or_trim(overhead->gpu, bytes - overhead->reserved);
    if (result != CUDA_SUCCESS) gputile_overhead_cancel(overhead);
    return result;
}

CUresult gputile_overhead_end(const struct gputile_overhead *overhead, uint64_t *bytes) {
    uint64_t already, most = gputile_limits()->overhead_bytes;
    bool exactly;
    *bytes = 0;
    if (overhead->gpu < 0) return CUDA_SUCCESS;
    const int64_t seen = gone(overhead, &exactly);
    const uint64_t taken = seen > 0 ? (uint64_t)seen : 0;
    if (exactly && taken && !overhead->own_before) gputile_shared_usage_context_seen((unsigned)overhead->gpu, taken);
    do {
        already = __atomic_load_n(&charged[overhead->gpu], __ATOMIC_RELAXED);
        *bytes = exactly ? taken : already >= most ? 0 : taken < most - already ? taken : most - already;
    } while (!__atomic_compare_exchange_n(&charged[overhead->gpu], &already, already + *bytes, false, __ATOMIC_RELAXED,
                                          __ATOMIC_RELAXED));
    CUresult result = reserve_in_all(overhead, *bytes);
    if (result != CUDA_SUCCESS) __atomic_fetch_sub(&charged[overhead->gpu], *bytes, __ATOMIC_RELAXED);
    return result;
}

void gputile_overhead_give_back(int gpu, uint64_t bytes) {
    __atomic_fetch_sub(&charged[gpu], bytes, __ATOMIC_RELAXED);
    gputile_give_back(gpu, bytes);
}

/* A forked child has not been charged yet. */
static void in_child(void) {
    for (int gpu = 0; gpu < GPUTILE_MOST_GPUS; gpu++) charged[gpu] = 0;
}

static const struct gputile_fork_handlers handlers = {.order = GPUTILE_FORK_OVERHEAD, .in_child = in_child};
static const struct gputile_fork_handlers *const registered GPUTILE_FORK_HANDLERS = &handlers;
