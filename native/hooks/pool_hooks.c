/* Counts the memory of stream-ordered pools. Memory is reserved for the pool before the driver is called. */
#include <stddef.h>

#include "accounting/pools.h"
#include "accounting/reservation.h"
#include "base/driver.h"
#include "hooks/hook_table.h"
#include "hooks/init.h"

CUresult cuMemPoolDestroy(CUmemoryPool handle);

GPUTILE_EXPORT CUresult cuMemPoolCreate(CUmemoryPool *made, const CUmemPoolProps *props) {
    CUdevice device;
    int gpu;
    if (!props) return CUDA_ERROR_INVALID_VALUE;
    if (!gputile_init()) return CUDA_ERROR_NO_DEVICE;
    if (!gputile_pools_place(&props->location, &device, &gpu)) return CUDA_ERROR_NO_DEVICE;
    gputile_pools_lock();
    CUresult result = CALL_REAL(cuMemPoolCreate, cuMemPoolCreate, made, props);
    if (result == CUDA_SUCCESS && !gputile_pools_add(*made, device, gpu)) {
        CALL_REAL(cuMemPoolDestroy, cuMemPoolDestroy, *made);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    gputile_pools_unlock();
    return result;
}

GPUTILE_EXPORT CUresult cuMemPoolDestroy(CUmemoryPool handle) {
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    gputile_pools_lock();
    CUresult result = gputile_pools_destroy(handle);
    gputile_pools_unlock();
    return result;
}

GPUTILE_EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
    CUresult result = CALL_REAL(cuMemPoolTrimTo, cuMemPoolTrimTo, pool, keep);
    gputile_pools_settle();
    return result;
}

static bool is_capturing(CUstream stream, bool per_thread) {
    int status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (per_thread && !stream) stream = CU_STREAM_PER_THREAD;
    return gputile_driver()->cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS &&
           status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* Find the pool and reserve memory for it. `need->pool` is NULL if the allocation is captured: it then becomes a node
 * of a graph, and nothing is counted. On success with a pool, the pools stay locked until the end of the allocation. */
static CUresult begin_allocation(CUmemoryPool handle, CUstream stream, bool per_thread, struct gputile_need *need) {
    need->pool = NULL;
    if (!gputile_init()) return CUDA_ERROR_NO_DEVICE;
    if (!gputile_driver()->cuCtxGetDevice) return CUDA_ERROR_NOT_INITIALIZED;
    if (is_capturing(stream, per_thread)) return CUDA_SUCCESS;
    return gputile_pools_begin(handle, stream, need);
}

/* The pool has exceeded the limit by more than its grain. Refuse the memory, and trim the pool. */
static CUresult undo(CUdeviceptr pointer, CUstream stream, int gpu) {
    gputile_driver()->cuMemFreeAsync(pointer, stream);
    gputile_driver()->cuStreamSynchronize(stream);
    gputile_pools_trim();
    return gputile_refuse(gpu);
}

static CUresult end_allocation(CUresult result, const struct gputile_need *need, const CUdeviceptr *pointer,
                               CUstream stream) {
    if (!need->pool) return result;
    const int gpu = gputile_pools_gpu(need);
    bool within = gputile_pools_leave(need, 1);
    return !within && result == CUDA_SUCCESS ? undo(*pointer, stream, gpu) : result;
}

GPUTILE_EXPORT CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream) {
    struct gputile_need need = {.bytes = bytes};
    CUresult result = begin_allocation(NULL, stream, false, &need);
    if (result != CUDA_SUCCESS) return result;
    return end_allocation(CALL_REAL(cuMemAllocAsync, cuMemAllocAsync, pointer, bytes, stream), &need, pointer, stream);
}

GPUTILE_EXPORT CUresult cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUstream stream) {
    struct gputile_need need = {.bytes = bytes};
    CUresult result = begin_allocation(NULL, stream, true, &need);
    if (result != CUDA_SUCCESS) return result;
    return end_allocation(CALL_REAL(cuMemAllocAsync, cuMemAllocAsync_ptsz, pointer, bytes, stream), &need, pointer,
                          stream);
}

GPUTILE_EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool,
                                                CUstream stream) {
    struct gputile_need need = {.bytes = bytes};
    CUresult result = begin_allocation(pool, stream, false, &need);
    if (result != CUDA_SUCCESS) return result;
    result = CALL_REAL(cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync, pointer, bytes, pool, stream);
    return end_allocation(result, &need, pointer, stream);
}

GPUTILE_EXPORT CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool,
                                                     CUstream stream) {
    struct gputile_need need = {.bytes = bytes};
    CUresult result = begin_allocation(pool, stream, true, &need);
    if (result != CUDA_SUCCESS) return result;
    result = CALL_REAL(cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync_ptsz, pointer, bytes, pool, stream);
    return end_allocation(result, &need, pointer, stream);
}

/* Pools return memory to the GPU when the host synchronises with the device. */
static CUresult settled(CUresult result) {
    gputile_pools_settle();
    return result;
}

GPUTILE_EXPORT CUresult cuStreamSynchronize(CUstream stream) {
    return settled(CALL_REAL(cuStreamSynchronize, cuStreamSynchronize, stream));
}

GPUTILE_EXPORT CUresult cuStreamSynchronize_ptsz(CUstream stream) {
    return settled(CALL_REAL(cuStreamSynchronize, cuStreamSynchronize_ptsz, stream));
}

GPUTILE_EXPORT CUresult cuCtxSynchronize(void) { return settled(CALL_REAL(cuCtxSynchronize, cuCtxSynchronize, )); }

GPUTILE_EXPORT CUresult cuDeviceGraphMemTrim(CUdevice device) {
    return settled(CALL_REAL(cuDeviceGraphMemTrim, cuDeviceGraphMemTrim, device));
}
