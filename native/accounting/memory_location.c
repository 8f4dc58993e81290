/* Interprets locations, and queries the driver for streams and for pools that this process has not created. */
#include "accounting/memory_location.h"

#include "base/driver.h"
#include "base/layouts.h"

bool gputile_on_host(const CUmemLocation *location) {
    return location->type == CU_MEM_LOCATION_TYPE_HOST || location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
           location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

CUdevice gputile_device_at(const CUmemLocation *location) {
    if (location->type == CU_MEM_LOCATION_TYPE_DEVICE) return location->id;
    return location->type == CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN ? location->id & 0xff : -1;
}

int gputile_device_count(void) {
    static int known;
    int count = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (count) return count;
    if (!gputile_driver()->cuDeviceGetCount || gputile_driver()->cuDeviceGetCount(&count) != CUDA_SUCCESS) return 0;
    if (count > GPUTILE_MOST_GPUS) count = GPUTILE_MOST_GPUS;
    __atomic_store_n(&known, count, __ATOMIC_RELAXED);
    return count;
}

static CUresult device_of_context(CUcontext context, CUdevice *device) {
    const struct gputile_driver *driver = gputile_driver();
    CUcontext current = NULL;
    if (driver->cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == context) return driver->cuCtxGetDevice(device);
    CUresult result = driver->cuCtxPushCurrent(context);
    if (result != CUDA_SUCCESS) return result;
    result = driver->cuCtxGetDevice(device);
    driver->cuCtxPopCurrent(&current);
    return result;
}

CUresult gputile_device_of_stream(CUstream stream, CUdevice *device) {
    const struct gputile_driver *driver = gputile_driver();
    CUcontext context;
    if (!stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD) return driver->cuCtxGetDevice(device);
    if (driver->cuStreamGetDevice && driver->cuStreamGetDevice(stream, device) == CUDA_SUCCESS) return CUDA_SUCCESS;
    CUresult result = driver->cuStreamGetCtx(stream, &context); /* CUDA before 12.8 */
    return result == CUDA_SUCCESS ? device_of_context(context, device) : result;
}

bool gputile_location_of_pool(CUmemoryPool pool, CUmemLocation *location) {
    const struct gputile_driver *driver = gputile_driver();
    CUmemoryPool other;
    for (CUdevice device = 0; device < gputile_device_count(); device++)
        if ((driver->cuDeviceGetDefaultMemPool(&other, device) == CUDA_SUCCESS && other == pool) ||
            (driver->cuDeviceGetMemPool(&other, device) == CUDA_SUCCESS && other == pool)) {
            *location = (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, device};
            return true;
        }
    /* Default pools of other locations exist since CUDA 13. Newer drivers of CUDA 13 report the pools' location. */
    return driver->cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_LOCATION_TYPE, &location->type) == CUDA_SUCCESS &&
           driver->cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_LOCATION_ID, &location->id) == CUDA_SUCCESS;
}
