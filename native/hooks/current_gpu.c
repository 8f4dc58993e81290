/* Queries the driver for the current device and context of the calling thread. */
#include "hooks/current_gpu.h"

#include <stddef.h>

#include "accounting/context_owners.h"
#include "accounting/gpus.h"
#include "base/driver.h"
#include "hooks/init.h"

CUresult gputile_current_gpu(int *gpu) {
    CUdevice device;
    if (!gputile_init()) return CUDA_ERROR_NO_DEVICE;
    if (!gputile_driver()->cuCtxGetDevice) return CUDA_ERROR_NOT_INITIALIZED;
    CUresult result = gputile_driver()->cuCtxGetDevice(&device);
    if (result != CUDA_SUCCESS) return result;
    *gpu = gputile_gpu_of_device(device);
    return *gpu < 0 ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS;
}

CUresult gputile_current_gpu_and_owner(int *gpu, uint64_t *owner) {
    CUcontext current = NULL;
    CUresult result = gputile_current_gpu(gpu);
    if (result == CUDA_SUCCESS) result = gputile_driver()->cuCtxGetCurrent(&current);
    *owner = gputile_context_owner(current);
    return result;
}
