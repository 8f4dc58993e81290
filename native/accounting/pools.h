/* Counts the memory of the driver's pools. All memory that a pool reserves on the GPU counts, even if it is not used.
 *
 * A pool is a stream-ordered pool (cuMemPool, cudaMallocAsync), or the pool from which a GPU's graphs allocate.
 */
#ifndef GPUTILE_POOLS_H
#define GPUTILE_POOLS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cuda_types.h"

struct gputile_pool;

/* The pool from which a device's graphs allocate, or NULL if the limits do not name the device. */
struct gputile_pool *gputile_graph_pool(CUdevice device);

/* The memory that a call may allocate from a pool. */
struct gputile_need {
    struct gputile_pool *pool;
    uint64_t bytes;
};

/* Reserve the memory by which these pools, which are all different, must grow for `need`. On success, all pools stay
 * locked until gputile_pools_leave. That function counts by how much the pools have really grown, and returns false if
 * this exceeds the limit. */
CUresult gputile_pools_enter(const struct gputile_need *need, int count);
bool gputile_pools_leave(const struct gputile_need *need, int count);

/* The GPU of a pool between gputile_pools_enter and gputile_pools_leave, or -1 for host memory. */
int gputile_pools_gpu(const struct gputile_need *need);

/* Enter the pool of the handle, or the current pool of the stream's device if the handle is NULL. Sets `need->pool`. */
CUresult gputile_pools_begin(CUmemoryPool handle, CUstream stream, struct gputile_need *need);

/* Like gputile_reserve, but if there is no room, trim the GPU's pools and try again. Must not be called between
 * gputile_pools_enter and gputile_pools_leave. */
CUresult gputile_reserve_or_trim(int gpu, uint64_t bytes);

/* Release the memory that pools have returned to their GPUs since the last call. Fast if no pool was ever used. */
void gputile_pools_settle(void);

/* Trim all pools, so that they return their unused memory. */
void gputile_pools_trim(void);

/* Like gputile_pools_settle, but for destroyed pools that are still in use. To be called after memory was freed without
 * a synchronisation. */
void gputile_pools_freed(void);

/* The following functions are called between lock and unlock. */
void gputile_pools_lock(void);
void gputile_pools_unlock(void);

/* Add a pool that this process has just created. */
bool gputile_pools_add(CUmemoryPool handle, CUdevice device, int gpu);

/* Destroy a pool at once, or when it is no longer used. */
CUresult gputile_pools_destroy(CUmemoryPool handle);

/* The device and the GPU of a pool at this location. The GPU is -1 for host memory. Returns false if the location is
 * not a GPU of this container. */
bool gputile_pools_place(const CUmemLocation *location, CUdevice *device, int *gpu);

#endif
