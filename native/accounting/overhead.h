/* The memory that the driver allocates by itself for a context or a module.
 *
 * For a context, it is the increase of this process's memory as NVML reports it. The memory that the process itself
 * allocated in the meantime is subtracted. Some machines' NVML does not list processes. There, and for modules, it is
 * the decrease of the GPU's free memory. What the container's processes reserved and released is subtracted. Other
 * containers also change the free memory. So a process is charged at most the `overhead` of the limits file on a GPU.
 *
 * Once the container has created a context, the minimum for a context is known. It is reserved before the next context
 * is created. If there is no room for it, the driver is not called.
 */
#ifndef GPUTILE_OVERHEAD_H
#define GPUTILE_OVERHEAD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cuda_types.h"

struct gputile_overhead {
    CUdevice device;
    int gpu; /* -1 if nothing can be measured */
    uint64_t free_before, used_before;
    bool own_known;
    uint64_t own_before, held_before; /* this process's memory as NVML reports it, and as this library counts it */
    uint64_t reserved; /* the bytes that this measurement has reserved in advance */
};

enum gputile_overhead_kind { GPUTILE_OVERHEAD_CONTEXT, GPUTILE_OVERHEAD_MODULE };

/* Begin a measurement on a device. If this process has a context on the device, the driver reports the free memory,
 * and otherwise NVML does. Returns CUDA_ERROR_OUT_OF_MEMORY if there is no room for a context. */
CUresult gputile_overhead_begin(struct gputile_overhead *overhead, CUdevice device, enum gputile_overhead_kind kind);

/* Release the reserved memory, because the driver has allocated nothing. */
void gputile_overhead_cancel(const struct gputile_overhead *overhead);

/* Charge the memory that was allocated since the measurement began. Returns CUDA_ERROR_OUT_OF_MEMORY if the limit is
 * exceeded. */
CUresult gputile_overhead_end(const struct gputile_overhead *overhead, uint64_t *bytes);

void gputile_overhead_give_back(int gpu, uint64_t bytes);

#endif
