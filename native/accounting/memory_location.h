/* The device of a memory location, of a stream or of a pool. */
#ifndef GPUTILE_MEMORY_LOCATION_H
#define GPUTILE_MEMORY_LOCATION_H

#include <stdbool.h>

#include "base/cuda_types.h"

bool gputile_on_host(const CUmemLocation *location);

/* The device of a location that is a device or a part of a device, or -1 for another location. */
CUdevice gputile_device_at(const CUmemLocation *location);

/* The number of this process's devices, but not more than the limits can name. It is 0 before cuInit. */
int gputile_device_count(void);

/* The device of a stream. Returns CUDA_SUCCESS, or the error that the calling function must return. */
CUresult gputile_device_of_stream(CUstream stream, CUdevice *device);

/* The location of a pool that this process has not created. Returns false if the location is unknown. */
bool gputile_location_of_pool(CUmemoryPool pool, CUmemLocation *location);

#endif
