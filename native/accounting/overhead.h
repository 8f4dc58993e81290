/* The memory that the driver allocates on its own, for a context or a module.
 *
 * For a context it is the increase of this process's memory as NVML reports it, without what the process allocated
 * itself meanwhile. NVML does not list processes everywhere, and the call takes a millisecond. Otherwise the decrease
 * of the GPU's free memory is used, without what the container's processes reserved and released meanwhile. It includes
 * changes by other containers, so a process is charged at most the `overhead` of the limits file for it on each GPU.
 *
 * The minimum for a context is known once the container has created one. It is reserved before the next context is
 * created; if there is no room for it, the driver is not called.
 */
#ifndef GPUTILE_OVERHEAD_H
#define GPUTILE_OVERHEAD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cuda_types.h"

struct gputile_overhead {
    CUdevice device;
    int gpu; /* -1: nothing can be measured */
    uint64_t free_before, used_before;
    bool own_known;
    uint64_t own_before, held_before; /* of this process, as NVML reports it and as this library counts it */
    uint64_t reserved; /* by this measurement, in advance */
};

enum gputile_overhead_kind { GPUTILE_OVERHEAD_CONTEXT, GPUTILE_OVERHEAD_MODULE };

/* Begin a measurement on a device. The free memory comes from the driver if this process has a context on the device,
 * else from NVML if that is available. Returns CUDA_ERROR_OUT_OF_MEMORY if there is no room for a context. */
CUresult gputile_overhead_begin(struct gputile_overhead *overhead, CUdevice device, enum gputile_overhead_kind kind);

/* Release what was reserved, since the driver allocated nothing. */
void gputile_overhead_cancel(const struct gputile_overhead *overhead);

/* Charge the memory that was allocated since; returns CUDA_ERROR_OUT_OF_MEMORY if that exceeds the limit. */
CUresult gputile_overhead_end(const struct gputile_overhead *overhead, uint64_t *bytes);

void gputile_overhead_give_back(int gpu, uint64_t bytes);

#endif
