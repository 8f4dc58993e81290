/* Where memory lies: which device a location, a stream or the handle of a pool stands for. */
#ifndef GPUTILE_MEMORY_LOCATION_H
#define GPUTILE_MEMORY_LOCATION_H

#include <stdbool.h>

#include "base/cuda_types.h"

bool gputile_on_host(const CUmemLocation *location);

/* The device of a location that is a device or a part of one, -1 for others. */
CUdevice gputile_device_at(const CUmemLocation *location);

/* How many devices this process has, 0 before cuInit; no more than the limits can name. */
int gputile_device_count(void);

/* The device whose work a stream does; CUDA_SUCCESS, else what a function that needs it has to answer. */
CUresult gputile_device_of_stream(CUstream stream, CUdevice *device);

/* Where a pool's memory comes from that this process has not made; false if that cannot be told. */
bool gputile_location_of_pool(CUmemoryPool pool, CUmemLocation *location);

#endif
