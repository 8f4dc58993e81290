/* Keeps a list of the pools that this process uses, and counts the GPU memory that each of them reserves. */
#define _GNU_SOURCE
#include "accounting/pools.h"

#include <stdlib.h>

#include "accounting/gpus.h"
#include "accounting/limits.h"
#include "accounting/memory_location.h"
#include "accounting/reservation.h"
#include "accounting/shared_usage.h"
#include "base/driver.h"
#include "base/driver_lock.h"
#include "base/fork_handlers.h"
#include "base/log.h"

struct gputile_pool {
    CUmemoryPool handle; /* NULL for the pool of the graphs of `device` */
    CUdevice device;
    int gpu; /* -1 for host memory */
    uint64_t counted, grain; /* the pool grows by multiples of `grain` */
    uint64_t expected; /* the pool's size after the current request, if it grows only for this request */
    bool made; /* this process has created the pool, and so may destroy it */
    bool destroy_deferred; /* the program has destroyed the pool, which is still in use */
    struct gputile_pool *next;
};

/* Stream-ordered pools grow by at least 32 MiB. If a driver has a larger step, it is learnt when it is observed. */
enum { STREAM_GRAIN = 32 << 20, GRAPH_GRAIN = 2 << 20, MOST_GRAIN = 1 << 30 };

/* The lock is recursive. A nested call from the driver removes no pool from the list that an outer call iterates. */
static struct gputile_driver_lock pools_lock = GPUTILE_DRIVER_LOCK;
static struct gputile_pool *pools;
static int deferred;

void gputile_pools_lock(void) { gputile_driver_lock(&pools_lock); }

void gputile_pools_unlock(void) { gputile_driver_unlock(&pools_lock); }

static CUresult attribute(const struct gputile_pool *pool, bool reserved, uint64_t *value) {
    *value = 0;
    if (pool->handle)
        return gputile_driver()->cuMemPoolGetAttribute(pool->handle,
                                                       reserved ? CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT
                                                                : CU_MEMPOOL_ATTR_USED_MEM_CURRENT,
                                                       value);
    return gputile_driver()->cuDeviceGetGraphMemAttribute(pool->device,
                                                          reserved ? CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT
                                                                   : CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT,
                                                          value);
}

static void shrink(const struct gputile_pool *pool) {
    if (pool->handle) gputile_driver()->cuMemPoolTrimTo(pool->handle, 0);
    else gputile_driver()->cuDeviceGraphMemTrim(pool->device);
}

/* Count no more memory than the pool reserves. */
static uint64_t settle(struct gputile_pool *pool) {
    uint64_t reserved;
    if (attribute(pool, true, &reserved) != CUDA_SUCCESS) return pool->counted;
    if (reserved < pool->counted) {
        gputile_give_back(pool->gpu, pool->counted - reserved);
        pool->counted = reserved;
    }
    return reserved;
}

static void forget(struct gputile_pool **at) {
    struct gputile_pool *pool = *at;
    __atomic_store_n(at, pool->next, __ATOMIC_RELEASE);
    if (pool->gpu >= 0) gputile_give_back(pool->gpu, pool->counted);
    if (pool->destroy_deferred) __atomic_fetch_sub(&deferred, 1, __ATOMIC_RELAXED);
    free(pool);
}

static CUresult destroy_now(CUmemoryPool handle) {
    return gputile_driver()->cuMemPoolDestroy ? gputile_driver()->cuMemPoolDestroy(handle) : CUDA_ERROR_NOT_FOUND;
}

/* A pool whose destruction was deferred is destroyed once it reserves nothing. */
static bool is_over(const struct gputile_pool *pool, uint64_t reserved) {
    return pool->destroy_deferred && !reserved && destroy_now(pool->handle) == CUDA_SUCCESS;
}

enum { EVERY_GPU = -1 };

/* Settle the pools of a GPU. If `shrinking`, trim the pools first. */
static void sweep(int gpu, bool shrinking) {
    if (pools_lock.depth > 1) return; /* the outer call sweeps */
    for (struct gputile_pool **at = &pools; *at;) {
        struct gputile_pool *pool = *at;
        bool asked = pool->gpu >= 0 && (gpu == EVERY_GPU || pool->gpu == gpu);
        if (asked && (shrinking || pool->destroy_deferred)) shrink(pool);
        if (asked && is_over(pool, settle(pool))) forget(at);
        else at = &pool->next;
    }
}

static bool grow(struct gputile_pool *pool, uint64_t bytes) {
    uint64_t reserved = settle(pool), used;
    if (attribute(pool, false, &used) != CUDA_SUCCESS) used = reserved;
    if (__builtin_add_overflow(used, bytes, &bytes)) return false;
    pool->expected = bytes > reserved ? bytes : reserved;
    if (bytes <= pool->counted) return true;
    uint64_t missing = (bytes - pool->counted - 1) / pool->grain * pool->grain;
    if (__builtin_add_overflow(missing, pool->grain, &missing)) return false;
    if (gputile_reserve(pool->gpu, missing) != CUDA_SUCCESS) return false;
    pool->counted += missing;
    return true;
}

static CUresult make_room(const struct gputile_need *need) {
    struct gputile_pool *pool = need->pool;
    if (pool->gpu < 0 || grow(pool, need->bytes)) return CUDA_SUCCESS;
    sweep(pool->gpu, true);
    return grow(pool, need->bytes) ? CUDA_SUCCESS : gputile_refuse(pool->gpu);
}

CUresult gputile_pools_enter(const struct gputile_need *need, int count) {
    int made = 0;
    gputile_pools_lock();
    while (made < count && make_room(&need[made]) == CUDA_SUCCESS) made++;
    if (made == count) return CUDA_SUCCESS;
    sweep(EVERY_GPU, false); /* the pools before this one do not grow either */
    gputile_pools_unlock();
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* A synchronisation of another thread may shrink the pool at any time. So the grain is learnt only if the pool has
 * grown by more than the request. */
static void learn_grain(struct gputile_pool *pool, uint64_t reserved) {
    uint64_t beyond = reserved > pool->expected ? gputile_footprint(reserved - pool->expected) : 0;
    if (beyond > pool->grain) pool->grain = beyond < MOST_GRAIN ? beyond : MOST_GRAIN;
}

static bool count_growth(struct gputile_pool *pool) {
    uint64_t reserved = pool->gpu < 0 ? 0 : settle(pool);
    if (pool->gpu < 0 || reserved <= pool->counted) return true;
    learn_grain(pool, reserved); /* the pool grew by more than its grain */
    bool within = gputile_reserve(pool->gpu, reserved - pool->counted) == CUDA_SUCCESS;
    if (!within) shrink(pool), reserved = settle(pool), within = reserved <= pool->counted;
    if (!within) gputile_shared_usage_force((unsigned)pool->gpu, reserved - pool->counted);
    if (reserved > pool->counted) pool->counted = reserved;
    return within;
}

bool gputile_pools_leave(const struct gputile_need *need, int count) {
    bool within = true;
    for (int i = 0; i < count; i++) within &= count_growth(need[i].pool);
    gputile_pools_unlock();
    return within;
}

CUresult gputile_reserve_or_trim(int gpu, uint64_t bytes) {
    if (gputile_reserve(gpu, bytes) == CUDA_SUCCESS) return CUDA_SUCCESS;
    if (bytes > gputile_limits()->gpu[gpu].bytes || !__atomic_load_n(&pools, __ATOMIC_ACQUIRE))
        return gputile_refuse(gpu);
    gputile_pools_lock();
    sweep(gpu, true);
    gputile_pools_unlock();
    return gputile_reserve(gpu, bytes) == CUDA_SUCCESS ? CUDA_SUCCESS : gputile_refuse(gpu);
}

int gputile_pools_gpu(const struct gputile_need *need) { return need->pool->gpu; }

void gputile_pools_settle(void) {
    if (!__atomic_load_n(&pools, __ATOMIC_ACQUIRE)) return;
    gputile_pools_lock();
    sweep(EVERY_GPU, false);
    gputile_pools_unlock();
}

void gputile_pools_trim(void) {
    gputile_pools_lock();
    sweep(EVERY_GPU, true);
    gputile_pools_unlock();
}

void gputile_pools_freed(void) {
    if (__atomic_load_n(&deferred, __ATOMIC_RELAXED)) gputile_pools_settle();
}

static struct gputile_pool *known(CUmemoryPool handle, CUdevice device) {
    struct gputile_pool *pool = pools;
    while (pool && (pool->handle != handle || (!handle && pool->device != device))) pool = pool->next;
    return pool;
}

static struct gputile_pool *add(CUmemoryPool handle, CUdevice device, int gpu, bool made) {
    struct gputile_pool *pool = calloc(1, sizeof *pool);
    if (!pool) return NULL;
    *pool = (struct gputile_pool){
        .handle = handle, .device = device, .gpu = gpu, .grain = handle ? STREAM_GRAIN : GRAPH_GRAIN, .made = made};
    struct gputile_pool **end = &pools; /* after the pools that an outer call iterates */
    while (*end) end = &(*end)->next;
    __atomic_store_n(end, pool, __ATOMIC_RELEASE);
    return pool;
}

struct gputile_pool *gputile_graph_pool(CUdevice device) {
    int gpu = gputile_gpu_of_device(device);
    if (gpu < 0) return NULL;
    gputile_pools_lock();
    struct gputile_pool *pool = known(NULL, device);
    if (!pool) pool = add(NULL, device, gpu, false);
    gputile_pools_unlock();
    return pool;
}

bool gputile_pools_place(const CUmemLocation *location, CUdevice *device, int *gpu) {
    *device = gputile_device_at(location);
    if (*device < 0) *device = location->id; /* managed memory without a preferred location */
    *gpu = gputile_on_host(location) ? -1 : gputile_gpu_of_device(*device);
    return gputile_on_host(location) || *gpu >= 0;
}

bool gputile_pools_add(CUmemoryPool handle, CUdevice device, int gpu) { return add(handle, device, gpu, true) != NULL; }

/* As in the driver, a destroyed pool is no longer the device's current pool, and reserves no unused memory. */
static void defer_destroy(struct gputile_pool *pool) {
    const struct gputile_driver *driver = gputile_driver();
    CUmemoryPool other;
    uint64_t none = 0;
    driver->cuMemPoolSetAttribute(pool->handle, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &none);
    if (driver->cuDeviceGetMemPool(&other, pool->device) == CUDA_SUCCESS && other == pool->handle &&
        driver->cuDeviceGetDefaultMemPool(&other, pool->device) == CUDA_SUCCESS)
        driver->cuDeviceSetMemPool(pool->device, other);
    pool->destroy_deferred = true;
    __atomic_fetch_add(&deferred, 1, __ATOMIC_RELAXED);
}

/* The driver frees a destroyed pool without notice when the pool is no longer used. So this library defers the
 * destruction until then, and counts the pool until then. */
CUresult gputile_pools_destroy(CUmemoryPool handle) {
    struct gputile_pool **at = &pools;
    while (*at && (*at)->handle != handle) at = &(*at)->next;
    struct gputile_pool *pool = *at;
    if (pool && pool->destroy_deferred) return CUDA_ERROR_INVALID_VALUE;
    if (pool && pool->made && pool->gpu >= 0) {
        shrink(pool);
        if (settle(pool) || pools_lock.depth > 1) return defer_destroy(pool), CUDA_SUCCESS;
    }
    CUresult result = destroy_now(handle);
    if (result == CUDA_SUCCESS && pool) forget(at);
    return result;
}

static CUresult unknown_place(void) {
    static bool said;
    if (!__atomic_exchange_n(&said, true, __ATOMIC_RELAXED))
        gputile_log("memory of a pool is refused, since the driver does not report the pool's GPU.");
    return CUDA_ERROR_NOT_SUPPORTED;
}

/* The pool of an allocation, which is the pool of the handle or else the device's current pool. */
static CUresult find(CUmemoryPool handle, CUdevice device, struct gputile_pool **pool) {
    CUmemLocation location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    int gpu;
    CUresult result = handle ? CUDA_SUCCESS : gputile_driver()->cuDeviceGetMemPool(&handle, device);
    if (result != CUDA_SUCCESS) return result;
    *pool = known(handle, device);
    if (*pool) return (*pool)->destroy_deferred ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    if (device < 0 && !gputile_location_of_pool(handle, &location)) return unknown_place();
    if (!gputile_pools_place(&location, &device, &gpu)) return CUDA_ERROR_NO_DEVICE;
    *pool = add(handle, device, gpu, false);
    return *pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult gputile_pools_begin(CUmemoryPool handle, CUstream stream, struct gputile_need *need) {
    CUdevice device = -1;
    CUresult result = handle ? CUDA_SUCCESS : gputile_device_of_stream(stream, &device);
    if (result != CUDA_SUCCESS) return result;
    gputile_pools_lock();
    result = find(handle, device, &need->pool);
    if (result == CUDA_SUCCESS) result = make_room(need);
    if (result != CUDA_SUCCESS) gputile_pools_unlock();
    return result;
}

static void in_child(void) {
    gputile_driver_lock_in_child(&pools_lock);
    deferred = 0;
    pools = NULL; /* a forked child cannot use the parent's pools */
}

static const struct gputile_fork_handlers handlers = {.order = GPUTILE_FORK_POOLS, .in_child = in_child};
static const struct gputile_fork_handlers *const registered GPUTILE_FORK_HANDLERS = &handlers;
