/* Memory that the driver keeps in pools: what counts is what a pool has taken from the GPU, not what is in use of it.
 *
 * A pool is a stream-ordered one (cuMemPool, cudaMallocAsync) or the one that a GPU's graphs allocate from.
 */
#ifndef GPUTILE_POOLS_H
#define GPUTILE_POOLS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cuda_types.h"

struct gputile_pool;

/* The pool of a device that its graphs allocate from; NULL if the limits do not name it. */
struct gputile_pool *gputile_graph_pool(CUdevice device);

/* What a call may take from a pool. */
struct gputile_need {
    struct gputile_pool *pool;
    uint64_t bytes;
};

/* Reserve what the pools, all different, have to grow by to hand out `need`. On success all
 * pools stay locked until gputile_pools_leave, which counts what these have really taken; it returns false if that is
 * over the limit. */
CUresult gputile_pools_enter(const struct gputile_need *need, int count);
bool gputile_pools_leave(const struct gputile_need *need, int count);

/* The GPU of a pool that was entered, before it is left; -1: the host's memory. */
int gputile_pools_gpu(const struct gputile_need *need);

/* The same for an allocation from the pool of the handle, else from the current one of the stream's device; sets
 * `need->pool`. */
CUresult gputile_pools_begin(CUmemoryPool handle, CUstream stream, struct gputile_need *need);

/* Reserve as gputile_reserve does; where there is no room, the GPU's pools give up what they hold unused first. Not
 * between entering pools and leaving them. */
CUresult gputile_reserve_or_trim(int gpu, uint64_t bytes);

/* Give back what pools have returned to their GPUs since; cheap where no pool was ever used. */
void gputile_pools_settle(void);

/* Have all pools give up what they hold unused. */
void gputile_pools_trim(void);

/* The same as settling, after memory was freed without waiting, for pools that were destroyed and are still in use. */
void gputile_pools_freed(void);

/* What follows is called between lock and unlock. */
void gputile_pools_lock(void);
void gputile_pools_unlock(void);

/* Add a pool that this process has just made. */
bool gputile_pools_add(CUmemoryPool handle, CUdevice device, int gpu);

/* Destroy a pool, at once or when it is used no more. */
CUresult gputile_pools_destroy(CUmemoryPool handle);

/* The device and the GPU (-1: the host's memory) of a pool there; false if that is no GPU of this container. */
bool gputile_pools_place(const CUmemLocation *location, CUdevice *device, int *gpu);

#endif
