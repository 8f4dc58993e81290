/* What the driver takes by itself, for a context or a module.
 *
 * For a context it is what NVIDIA counts for this process, before and after, less what the process took itself. NVML does
 * not list processes everywhere, and asking takes a millisecond. So else it is the difference of the GPU's free memory,
 * less what the allocation's processes reserved meanwhile, plus what they gave back. Other containers use the GPU too and
 * cannot be told apart there, so what is measured so is charged to a process up to the limits file's `overhead` on a GPU.
 *
 * What a context takes at least is known once the container has made one. So much is reserved before the next is made,
 * and where that has no room the driver is not asked.
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
    uint64_t own_before, held_before; /* by this process: by NVIDIA's count, and by this library's */
    uint64_t reserved; /* since, for what is measured */
};

enum gputile_overhead_kind { GPUTILE_OVERHEAD_CONTEXT, GPUTILE_OVERHEAD_MODULE };

/* Begin to measure on a device. Without a context of this process on it, NVML is asked; without both, nobody.
 * CUDA_ERROR_OUT_OF_MEMORY: there is no room for a context. */
CUresult gputile_overhead_begin(struct gputile_overhead *overhead, CUdevice device, enum gputile_overhead_kind kind);

/* The driver took nothing: what was reserved is given back. */
void gputile_overhead_cancel(const struct gputile_overhead *overhead);

/* Charge what has gone since: CUDA_SUCCESS with the bytes, or CUDA_ERROR_OUT_OF_MEMORY if that is over the limit. */
CUresult gputile_overhead_end(const struct gputile_overhead *overhead, uint64_t *bytes);

void gputile_overhead_give_back(int gpu, uint64_t bytes);

#endif
