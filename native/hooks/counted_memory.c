/* Counts linear memory, arrays and imports. Each allocation reserves memory before it calls the driver, and releases
 * the memory if the driver refuses. Memory is also released after the driver has freed it. */
#include "accounting/allocation_table.h"
#include "accounting/pools.h"
#include "accounting/reservation.h"
#include "base/log.h"
#include "hooks/current_gpu.h"
#include "hooks/hook_table.h"

struct request {
    int gpu;
    uint64_t context, bytes;
};

static CUresult ask(struct request *request, uint64_t bytes) {
    CUresult result = gputile_current_gpu_and_owner(&request->gpu, &request->context);
    request->bytes = bytes;
    return result == CUDA_SUCCESS ? gputile_reserve_or_trim(request->gpu, bytes) : result;
}

static CUresult settle(const struct request *request, CUresult result, enum gputile_allocation_kind kind,
                       uint64_t key) {
    if (result != CUDA_SUCCESS) gputile_give_back(request->gpu, request->bytes);
    else
        gputile_allocation_add(
            (struct gputile_allocation){kind, key, request->gpu, request->bytes, request->context, 1});
    return result;
}

/* Free memory. The pointer is removed from the table first, because the driver may use the address again at once. The
 * bytes are released after the driver has freed them. */
static CUresult end_free(bool held, const struct gputile_allocation *taken, CUresult result) {
    if (held && result != CUDA_SUCCESS) gputile_allocation_add(*taken);
    else if (held) gputile_give_back(taken->gpu, taken->bytes);
    return result;
}

/* Functions of CUDA before 3.2, with 32-bit device pointers, which current programs cannot use. */
static CUresult too_old(const char *name) {
    gputile_log("%s is refused, since its memory cannot be counted: use %s_v2", name, name);
    return CUDA_ERROR_NOT_SUPPORTED;
}

GPUTILE_EXPORT CUresult cuMemAlloc(unsigned *pointer, unsigned bytes) {
    return (void)pointer, (void)bytes, too_old("cuMemAlloc");
}

GPUTILE_EXPORT CUresult cuMemAllocPitch(unsigned *pointer, unsigned *pitch, unsigned width, unsigned height,
                                        unsigned element) {
    (void)pointer, (void)pitch, (void)width, (void)height, (void)element;
    return too_old("cuMemAllocPitch");
}

GPUTILE_EXPORT CUresult cuArrayCreate(CUarray *array, const void *descriptor) {
    return (void)array, (void)descriptor, too_old("cuArrayCreate");
}

GPUTILE_EXPORT CUresult cuArray3DCreate(CUarray *array, const void *descriptor) {
    return (void)array, (void)descriptor, too_old("cuArray3DCreate");
}

GPUTILE_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) {
    struct request request;
    CUresult result = ask(&request, gputile_footprint(bytes));
    if (result != CUDA_SUCCESS) return result;
    result = CALL_REAL(cuMemAlloc, cuMemAlloc_v2, pointer, bytes);
    return settle(&request, result, GPUTILE_LINEAR, result == CUDA_SUCCESS ? *pointer : 0);
}

GPUTILE_EXPORT CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned flags) {
    struct request request;
    CUresult result = ask(&request, gputile_footprint(bytes));
    if (result != CUDA_SUCCESS) return result;
    result = CALL_REAL(cuMemAllocManaged, cuMemAllocManaged, pointer, bytes, flags);
    return settle(&request, result, GPUTILE_LINEAR, result == CUDA_SUCCESS ? *pointer : 0);
}

CUresult cuMemFree_v2(CUdeviceptr pointer);

/* The driver chooses the pitch. All GPUs so far align rows to 512 bytes. */
GPUTILE_EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height,
                                           unsigned element) {
    enum { ROW = 512 };
    struct request request;
    uint64_t row = width > SIZE_MAX - ROW ? SIZE_MAX : (width + ROW - 1) / ROW * ROW, bytes;
    if (__builtin_mul_overflow(row, height, &bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = ask(&request, gputile_footprint(bytes));
    if (result != CUDA_SUCCESS) return result;
    result = CALL_REAL(cuMemAllocPitch, cuMemAllocPitch_v2, pointer, pitch, width, height, element);
    if (result != CUDA_SUCCESS || *pitch <= row)
        return settle(&request, result, GPUTILE_LINEAR, result == CUDA_SUCCESS ? *pointer : 0);
    uint64_t more = gputile_footprint(*pitch * height) - request.bytes;
    if (gputile_reserve_or_trim(request.gpu, more) == CUDA_SUCCESS) {
        request.bytes += more;
        return settle(&request, result, GPUTILE_LINEAR, *pointer);
    }
    CALL_REAL(cuMemFree, cuMemFree_v2, *pointer);
    return settle(&request, CUDA_ERROR_OUT_OF_MEMORY, GPUTILE_LINEAR, 0);
}

GPUTILE_EXPORT CUresult cuMemFree_v2(CUdeviceptr pointer) {
    struct gputile_allocation taken;
    const bool held = gputile_allocation_take(GPUTILE_LINEAR, pointer, &taken);
    const CUresult result = end_free(held, &taken, CALL_REAL(cuMemFree, cuMemFree_v2, pointer));
    gputile_pools_settle();
    return result;
}

GPUTILE_EXPORT CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
    struct gputile_allocation taken;
    const bool held = gputile_allocation_take(GPUTILE_LINEAR, pointer, &taken);
    const CUresult result = end_free(held, &taken, CALL_REAL(cuMemFreeAsync, cuMemFreeAsync, pointer, stream));
    gputile_pools_freed();
    return result;
}

GPUTILE_EXPORT CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream) {
    struct gputile_allocation taken;
    const bool held = gputile_allocation_take(GPUTILE_LINEAR, pointer, &taken);
    const CUresult result = end_free(held, &taken, CALL_REAL(cuMemFreeAsync, cuMemFreeAsync_ptsz, pointer, stream));
    gputile_pools_freed();
    return result;
}

/* The bytes of a channel in each CUarray_format. Block-compressed and video formats have at most 4 bytes a channel. */
static uint64_t channel_bytes(int format) {
    /* clang-format off */
    switch (format) {
    case 0x01: case 0x08: case 0xc0: case 0xc1: case 0xc2: case 0xc6: case 0xc7: case 0xc8: return 1;
    case 0x02: case 0x09: case 0x10: case 0xc3: case 0xc4: case 0xc5: case 0xc9: case 0xca: case 0xcb: return 2;
    default: return 4;
    }
    /* clang-format on */
}

static uint64_t level_bytes(const CUDA_ARRAY3D_DESCRIPTOR *d) {
    uint64_t bytes = channel_bytes(d->Format) * d->NumChannels;
    const uint64_t sides[] = {d->Width, d->Height ? d->Height : 1, d->Depth ? d->Depth : 1};
    for (int i = 0; i < 3; i++)
        if (__builtin_mul_overflow(bytes, sides[i], &bytes)) return UINT64_MAX;
    return bytes;
}

static uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels) {
    CUDA_ARRAY3D_DESCRIPTOR level = *d;
    uint64_t sum = 0;
    /* These arrays have no memory until memory is mapped into them, which this library refuses. */
    if (d->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) return 0;
    for (unsigned i = 0; i < levels && i < 64; i++) {
        if (__builtin_add_overflow(sum, level_bytes(&level), &sum)) return UINT64_MAX;
        if (level.Width > 1) level.Width /= 2;
        if (level.Height > 1) level.Height /= 2;
        if (level.Depth > 1 && !(d->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP))) level.Depth /= 2;
    }
    return gputile_footprint(sum);
}

GPUTILE_EXPORT CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *d) {
    struct request request;
    if (!d) return CUDA_ERROR_INVALID_VALUE;
    CUDA_ARRAY3D_DESCRIPTOR whole = {d->Width, d->Height, 0, d->Format, d->NumChannels, 0};
    CUresult result = ask(&request, array_bytes(&whole, 1));
    if (result != CUDA_SUCCESS) return result;
    result = CALL_REAL(cuArrayCreate, cuArrayCreate_v2, array, d);
    return settle(&request, result, GPUTILE_ARRAY, result == CUDA_SUCCESS ? (uintptr_t)*array : 0);
}

GPUTILE_EXPORT CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *d) {
    struct request request;
    if (!d) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = ask(&request, array_bytes(d, 1));
    if (result != CUDA_SUCCESS) return result;
    result = CALL_REAL(cuArray3DCreate, cuArray3DCreate_v2, array, d);
    return settle(&request, result, GPUTILE_ARRAY, result == CUDA_SUCCESS ? (uintptr_t)*array : 0);
}

GPUTILE_EXPORT CUresult cuArrayDestroy(CUarray array) {
    struct gputile_allocation taken;
    const bool held = gputile_allocation_take(GPUTILE_ARRAY, (uintptr_t)array, &taken);
    return end_free(held, &taken, CALL_REAL(cuArrayDestroy, cuArrayDestroy, array));
}

GPUTILE_EXPORT CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *d,
                                               unsigned levels) {
    struct request request;
    if (!d) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = ask(&request, array_bytes(d, levels));
    if (result != CUDA_SUCCESS) return result;
    result = CALL_REAL(cuMipmappedArrayCreate, cuMipmappedArrayCreate, array, d, levels);
    return settle(&request, result, GPUTILE_ARRAY, result == CUDA_SUCCESS ? (uintptr_t)*array : 0);
}

GPUTILE_EXPORT CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) {
    struct gputile_allocation taken;
    const bool held = gputile_allocation_take(GPUTILE_ARRAY, (uintptr_t)array, &taken);
    return end_free(held, &taken, CALL_REAL(cuMipmappedArrayDestroy, cuMipmappedArrayDestroy, array));
}

/* Memory of another API, such as Vulkan, which was not counted before. */
GPUTILE_EXPORT CUresult cuImportExternalMemory(CUexternalMemory *memory, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *d) {
    struct request request;
    if (!d) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = ask(&request, gputile_footprint(d->size));
    if (result != CUDA_SUCCESS) return result;
    result = CALL_REAL(cuImportExternalMemory, cuImportExternalMemory, memory, d);
    return settle(&request, result, GPUTILE_EXTERNAL, result == CUDA_SUCCESS ? (uintptr_t)*memory : 0);
}

GPUTILE_EXPORT CUresult cuDestroyExternalMemory(CUexternalMemory memory) {
    struct gputile_allocation taken;
    const bool held = gputile_allocation_take(GPUTILE_EXTERNAL, (uintptr_t)memory, &taken);
    return end_free(held, &taken, CALL_REAL(cuDestroyExternalMemory, cuDestroyExternalMemory, memory));
}
