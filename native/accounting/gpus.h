/* Maps devices of this process to GPUs of the limits file: the process may see the GPUs in any order. */
#ifndef GPUTILE_GPUS_H
#define GPUTILE_GPUS_H

#include "base/cuda_types.h"

/* The GPU of a device; -1 if the limits do not name it. */
int gputile_gpu_of_device(CUdevice device);

/* The GPU with a UUID ("GPU-..."); -1 if the limits do not name it. */
int gputile_gpu_of_uuid(const char *uuid);

#endif
