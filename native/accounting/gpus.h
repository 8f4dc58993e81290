/* Maps devices of this process to GPUs of the limits file, because the process may see the GPUs in another order. */
#ifndef GPUTILE_GPUS_H
#define GPUTILE_GPUS_H

#include "base/cuda_types.h"

/* The GPU of a device, or -1 if the limits do not name the device. */
int gputile_gpu_of_device(CUdevice device);

/* The GPU with a UUID ("GPU-..."), or -1 if the limits do not name the UUID. */
int gputile_gpu_of_uuid(const char *uuid);

#endif
