/* Which GPU of the limits file a device of this process is: the process may see them in any order. */
#ifndef GPUTILE_GPUS_H
#define GPUTILE_GPUS_H

#include "base/cuda_types.h"

/* The GPU of a device, -1 if the limits name it not. */
int gputile_gpu_of_device(CUdevice device);

/* The gpu with a UUID ("GPU-..."), -1 if the limits name it not. */
int gputile_gpu_of_uuid(const char *uuid);

#endif
