/* Memory that the driver keeps in pools: the memory that a pool reserves on the GPU counts, whether it is used or not.
 *
 * A pool is a stream-ordered pool (cuMemPool, cudaMallocAsync), or the pool from which a GPU's graphs allocate.
 */
#ifndef GPUTILE_POOLS_H
#define GPUTILE_POOLS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cuda_types.h"

struct gputile_pool;

/* The pool from which a device's graphs allocate; NULL if the limits do not name the device. */
struct gputile_pool *gputile_graph_pool(CUdevice device);

/* The memory that a call may allocate from a pool. */
struct gputile_need {
    struct gputile_pool *pool;
    uint64_t bytes;
};

/* Reserve the memory by which these pools, all different, must grow to satisfy `need`. On success all pools stay locked
 * until gputile_pools_leave, which counts by how much they have really grown; it returns false if that exceeds the
 * limit. */
CUresult gputile_pools_enter(const struct gputile_need *need, int count);
bool gputile_pools_leave(const struct gputile_need *need, int count);

/* The GPU of a pool between gputile_pools_enter and gputile_pools_leave; -1: host memory. */
int gputile_pools_gpu(const struct gputile_need *need);

/* Enter the pool of the handle or, if it is NULL, the current pool of the stream's device; sets `need->pool`. */
CUresult gputile_pools_begin(CUmemoryPool handle, CUstream stream, struct gputile_need *need);

/* Like gputile_reserve, but if there is no room, trim the GPU's pools and try again. Not to be called between
 * gputile_pools_enter and gputile_pools_leave. */
CUresult gputile_reserve_or_trim(int gpu, uint64_t bytes);

/* Release the memory that pools have returned to their GPUs since the last call; cheap if no pool was ever used. */
void gputile_pools_settle(void);

/* Trim all pools: they return their unused memory. */
void gputile_pools_trim(void);

/* Like gputile_pools_settle, for destroyed pools that are still in use: called after memory was freed without
 * waiting. */
void gputile_pools_freed(void);

/* The following functions are called between lock and unlock. */
void gputile_pools_lock(void);
void gputile_pools_unlock(void);

/* Add a pool that this process has just created. */
bool gputile_pools_add(CUmemoryPool handle, CUdevice device, int gpu);

/* Destroy a pool, at once or when it is no longer used. */
CUresult gputile_pools_destroy(CUmemoryPool handle);

/* The device and the GPU (-1: host memory) of a pool at this location; false if it is not a GPU of this container. */
bool gputile_pools_place(const CUmemLocation *location, CUdevice *device, int *gpu);

#endif
