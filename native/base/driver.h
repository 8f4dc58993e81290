/* The functions of libcuda.so.1 itself, never this library's hooks of the same names.
 *
 * The first call looks them up in the loaded libcuda.so.1. A function that this driver does not have is NULL.
 */
#ifndef GPUTILE_DRIVER_H
#define GPUTILE_DRIVER_H

#include <stdbool.h>

#include "base/cuda_types.h"

/* X(name of the field, the driver's symbol, parameters) */
#define GPUTILE_DRIVER_FUNCTIONS(X)                                                                              \
    X(cuDriverGetVersion, "cuDriverGetVersion", (int *))                                                         \
    X(cuDeviceGet, "cuDeviceGet", (CUdevice *, int))                                                             \
    X(cuDeviceGetCount, "cuDeviceGetCount", (int *))                                                             \
    X(cuDeviceGetUuid, "cuDeviceGetUuid", (CUuuid *, CUdevice))                                                  \
    X(cuDeviceGetAttribute, "cuDeviceGetAttribute", (int *, int, CUdevice))                                      \
    X(cuCtxGetCurrent, "cuCtxGetCurrent", (CUcontext *))                                                         \
    X(cuCtxSetCurrent, "cuCtxSetCurrent", (CUcontext))                                                           \
    X(cuCtxGetDevice, "cuCtxGetDevice", (CUdevice *))                                                            \
    X(cuCtxPushCurrent, "cuCtxPushCurrent_v2", (CUcontext))                                                      \
    X(cuCtxPopCurrent, "cuCtxPopCurrent_v2", (CUcontext *))                                                      \
    X(cuCtxSynchronize, "cuCtxSynchronize", (void))                                                              \
    X(cuCtxRecordEvent, "cuCtxRecordEvent", (CUcontext, CUevent))                                                \
    X(cuThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode", (int *))                           \
    X(cuMemGetInfo, "cuMemGetInfo_v2", (size_t *, size_t *))                                                     \
    X(cuMemFreeAsync, "cuMemFreeAsync", (CUdeviceptr, CUstream))                                                 \
    X(cuMemPoolGetAttribute, "cuMemPoolGetAttribute", (CUmemoryPool, int, void *))                               \
    X(cuMemPoolSetAttribute, "cuMemPoolSetAttribute", (CUmemoryPool, int, void *))                               \
    X(cuMemPoolDestroy, "cuMemPoolDestroy", (CUmemoryPool))                                                      \
    X(cuMemPoolTrimTo, "cuMemPoolTrimTo", (CUmemoryPool, size_t))                                                \
    X(cuDeviceGetMemPool, "cuDeviceGetMemPool", (CUmemoryPool *, CUdevice))                                      \
    X(cuDeviceGetDefaultMemPool, "cuDeviceGetDefaultMemPool", (CUmemoryPool *, CUdevice))                        \
    X(cuDeviceSetMemPool, "cuDeviceSetMemPool", (CUdevice, CUmemoryPool))                                        \
    X(cuDeviceGetGraphMemAttribute, "cuDeviceGetGraphMemAttribute", (CUdevice, int, void *))                     \
    X(cuDeviceGraphMemTrim, "cuDeviceGraphMemTrim", (CUdevice))                                                  \
    X(cuDevicePrimaryCtxGetState, "cuDevicePrimaryCtxGetState", (CUdevice, unsigned *, int *))                   \
    X(cuGraphGetNodes, "cuGraphGetNodes", (CUgraph, CUgraphNode *, size_t *))                                    \
    X(cuGraphNodeGetType, "cuGraphNodeGetType", (CUgraphNode, int *))                                            \
    X(cuGraphMemAllocNodeGetParams, "cuGraphMemAllocNodeGetParams", (CUgraphNode, CUDA_MEM_ALLOC_NODE_PARAMS *)) \
    X(cuGraphChildGraphNodeGetGraph, "cuGraphChildGraphNodeGetGraph", (CUgraphNode, CUgraph *))                  \
    X(cuStreamSynchronize, "cuStreamSynchronize", (CUstream))                                                    \
    X(cuStreamQuery, "cuStreamQuery", (CUstream))                                                                \
    X(cuStreamGetCtx, "cuStreamGetCtx", (CUstream, CUcontext *))                                                 \
    X(cuStreamGetDevice, "cuStreamGetDevice", (CUstream, CUdevice *))                                            \
    X(cuStreamIsCapturing, "cuStreamIsCapturing", (CUstream, int *))                                             \
    X(cuEventCreate, "cuEventCreate", (CUevent *, unsigned))                                                     \
    X(cuEventRecord, "cuEventRecord", (CUevent, CUstream))                                                       \
    X(cuEventQuery, "cuEventQuery", (CUevent))                                                                   \
    X(cuEventSynchronize, "cuEventSynchronize", (CUevent))                                                       \
    X(cuEventElapsedTime, "cuEventElapsedTime", (float *, CUevent, CUevent))                                     \
    X(cuEventDestroy, "cuEventDestroy_v2", (CUevent))

struct gputile_driver {
#define GPUTILE_DRIVER_FIELD(field, symbol, parameters) CUresult(*field) parameters;
    GPUTILE_DRIVER_FUNCTIONS(GPUTILE_DRIVER_FIELD)
#undef GPUTILE_DRIVER_FIELD
};

/* The driver's functions, which are all NULL while no libcuda.so.1 is loaded. Any thread may call this. */
const struct gputile_driver *gputile_driver(void);

/* The address of another symbol of the driver itself. */
void *gputile_driver_symbol(const char *symbol);

bool gputile_driver_is_loaded(void);

/* Keep the driver loaded at its address as long as the process lives. This library stores the driver's addresses, but
 * a program may close and reopen the driver. To be called without a lock, because the dynamic loader has its own. */
void gputile_pin_driver(void);

#endif
