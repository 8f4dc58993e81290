/* Counts physical memory from cuMemCreate until no handle and no mapping refers to it. An imported handle is not
 * counted, because its creator is charged. An export adds no reference, because the end of an import is unknown. */
#include "accounting/allocation_table.h"
#include "accounting/gpus.h"
#include "accounting/memory_location.h"
#include "accounting/pools.h"
#include "accounting/reservation.h"
#include "base/log.h"
#include "hooks/hook_table.h"
#include "hooks/init.h"

static void unreference(CUmemGenericAllocationHandle handle) {
    struct gputile_allocation taken;
    if (gputile_allocation_take(GPUTILE_PHYSICAL, handle, &taken)) gputile_give_back(taken.gpu, taken.bytes);
}

GPUTILE_EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *prop,
                                    unsigned long long flags) {
    if (!prop) return CUDA_ERROR_INVALID_VALUE;
    if (!gputile_init()) return CUDA_ERROR_NO_DEVICE;
    if (gputile_on_host(&prop->location)) return CALL_REAL(cuMemCreate, cuMemCreate, handle, bytes, prop, flags);
    CUdevice device = gputile_device_at(&prop->location);
    if (device < 0) return CUDA_ERROR_NOT_SUPPORTED; /* a kind of location that this library does not know */
    int gpu = gputile_gpu_of_device(device);
    if (gpu < 0) return CUDA_ERROR_INVALID_DEVICE;
    CUresult result = gputile_reserve_or_trim(gpu, bytes);
    if (result != CUDA_SUCCESS) return result;
    result = CALL_REAL(cuMemCreate, cuMemCreate, handle, bytes, prop, flags);
    if (result != CUDA_SUCCESS) gputile_give_back(gpu, bytes);
    else gputile_allocation_add((struct gputile_allocation){GPUTILE_PHYSICAL, *handle, gpu, bytes, 0, 1});
    return result;
}

GPUTILE_EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    struct gputile_allocation taken;
    bool last = gputile_allocation_take(GPUTILE_PHYSICAL, handle, &taken);
    CUresult result = CALL_REAL(cuMemRelease, cuMemRelease, handle);
    if (result == CUDA_SUCCESS && last) gputile_give_back(taken.gpu, taken.bytes);
    else if (result != CUDA_SUCCESS && last) taken.references = 1, gputile_allocation_add(taken);
    else if (result != CUDA_SUCCESS) gputile_allocation_add_reference(GPUTILE_PHYSICAL, handle);
    return result;
}

GPUTILE_EXPORT CUresult cuMemMap(CUdeviceptr start, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                                 unsigned long long flags) {
    bool counted = gputile_allocation_add_reference(GPUTILE_PHYSICAL, handle);
    CUresult result = CALL_REAL(cuMemMap, cuMemMap, start, bytes, offset, handle, flags);
    if (counted && result != CUDA_SUCCESS) unreference(handle);
    else if (result == CUDA_SUCCESS) /* also of an import, so that unmapping a range finds the next mapping */
        gputile_allocation_add((struct gputile_allocation){GPUTILE_MAPPING, start, -1, bytes, counted ? handle : 0, 1});
    return result;
}

/* A range may cover several whole mappings. */
GPUTILE_EXPORT CUresult cuMemUnmap(CUdeviceptr start, size_t bytes) {
    struct gputile_allocation mapping;
    CUresult result = CALL_REAL(cuMemUnmap, cuMemUnmap, start, bytes);
    if (result != CUDA_SUCCESS) return result;
    for (CUdeviceptr at = start; at < start + bytes && gputile_allocation_take(GPUTILE_MAPPING, at, &mapping);) {
        if (mapping.owner) unreference(mapping.owner);
        if (!mapping.bytes) break;
        at += mapping.bytes;
    }
    return result;
}

/* A part of a sparse array would use memory after the release of the handle, until another call unmaps the part. */
static CUresult no_part(void) {
    static bool said;
    if (!__atomic_exchange_n(&said, true, __ATOMIC_RELAXED))
        gputile_log("cuMemMapArrayAsync is refused, since memory that is mapped into a sparse array cannot be counted. "
                    "Create arrays without CUDA_ARRAY3D_SPARSE and CUDA_ARRAY3D_DEFERRED_MAPPING instead.");
    return CUDA_ERROR_NOT_SUPPORTED;
}

GPUTILE_EXPORT CUresult cuMemMapArrayAsync(void *parts, unsigned count, CUstream stream) {
    return (void)parts, (void)count, (void)stream, no_part();
}

GPUTILE_EXPORT CUresult cuMemMapArrayAsync_ptsz(void *parts, unsigned count, CUstream stream) {
    return (void)parts, (void)count, (void)stream, no_part();
}

GPUTILE_EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address) {
    CUresult result = CALL_REAL(cuMemRetainAllocationHandle, cuMemRetainAllocationHandle, handle, address);
    if (result == CUDA_SUCCESS) gputile_allocation_add_reference(GPUTILE_PHYSICAL, *handle);
    return result;
}
