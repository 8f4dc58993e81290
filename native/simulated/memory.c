/* Simulates every way to allocate device memory that is counted: linear, pitched and managed memory, pools, virtual
 * memory, arrays and imports. */
#include "simulated/simulated.h"
#include <stdlib.h>
#include <string.h>

enum kind { LINEAR, PHYSICAL, ARRAY, EXTERNAL, POOLED };
struct pool {
    int device;
    size_t reserved, used;
    uint64_t threshold;
    bool destroyed;
};
struct block {
    uint64_t key;
    enum kind kind;
    int device, references;
    size_t bytes;
    struct pool *pool;
    struct block *next;
};
struct mapping {
    CUdeviceptr start;
    size_t bytes;
    struct block *block;
    struct mapping *next;
};

enum { BUCKETS = 1024 };
static struct block *blocks[BUCKETS];
static struct mapping *mappings;
static struct pool defaults[SIMULATED_MOST_GPUS], *chosen[SIMULATED_MOST_GPUS];
static uint64_t next_address = 0x700000000000;

void memory_in_child(void) {
    memset(blocks, 0, sizeof blocks), memset(defaults, 0, sizeof defaults), memset(chosen, 0, sizeof chosen);
    mappings = NULL;
}

static uint64_t fresh(size_t bytes) {
    uint64_t at = next_address;
    next_address += (bytes + 2 * SIMULATED_MIB - 1) / (2 * SIMULATED_MIB) * (2 * SIMULATED_MIB) + 2 * SIMULATED_MIB;
    return at;
}

static struct block *add(uint64_t key, enum kind kind, int device, size_t bytes, struct pool *pool) {
    struct block *block = malloc(sizeof *block), **head = &blocks[(key >> 21) % BUCKETS];
    *block = (struct block){key, kind, device, 1, bytes, pool, *head};
    return *head = block;
}
static struct block **find(uint64_t key) {
    struct block **at = &blocks[(key >> 21) % BUCKETS];
    while (*at && (*at)->key != key) at = &(*at)->next;
    return at;
}

static CUresult make(uint64_t *key, enum kind kind, int device, size_t bytes) {
    if (device < 0) return CUDA_ERROR_INVALID_CONTEXT;
    if (!bytes) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = take(device, bytes);
    if (result) return result;
    pthread_mutex_lock(&simulated_mutex);
    *key = fresh(bytes);
    add(*key, kind, device, bytes, NULL);
    pthread_mutex_unlock(&simulated_mutex);
    return CUDA_SUCCESS;
}

static void trim(struct pool *pool, size_t keep) {
    size_t left = pool->used > keep ? pool->used : keep;
    if (pool->reserved > left) give(pool->device, pool->reserved - left), pool->reserved = left;
}
/* A destroyed pool exists until none of its memory is in use. */
static void shrink_destroyed(struct pool *pool) {
    trim(pool, 0);
    if (!pool->used) free(pool);
}

static void unreference(struct block **at) {
    struct block *block = *at;
    if (--block->references) return;
    *at = block->next;
    if (block->kind != POOLED) give(block->device, block->bytes);
    else if (block->pool->used -= block->bytes, block->pool->destroyed) shrink_destroyed(block->pool);
    free(block);
}

static CUresult drop(uint64_t key) {
    pthread_mutex_lock(&simulated_mutex);
    struct block **at = find(key);
    bool found = *at;
    if (found) unreference(at);
    pthread_mutex_unlock(&simulated_mutex);
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *p, size_t bytes) {
    return make((uint64_t *)p, LINEAR, current_device(), bytes);
}
EXPORT CUresult cuMemAllocManaged(CUdeviceptr *p, size_t bytes, unsigned flags) {
    return (void)flags, make((uint64_t *)p, LINEAR, current_device(), bytes);
}
EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *p, size_t *pitch, size_t width, size_t height, unsigned element) {
    *pitch = (width + 511) / 512 * 512;
    return (void)element, make((uint64_t *)p, LINEAR, current_device(), *pitch * height);
}
EXPORT CUresult cuMemFree_v2(CUdeviceptr p) {
    finish(NULL);
    return drop(p);
}
/* A function that allocates, of a driver that is newer than the library under test. */
EXPORT CUresult cuMemAllocQuantum(CUdeviceptr *p, size_t bytes) { return cuMemAlloc_v2(p, bytes); }
EXPORT CUresult cuMemHostAlloc(void **p, size_t bytes, unsigned flags) {
    return (void)flags, (*p = malloc(bytes)) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
EXPORT CUresult cuMemFreeHost(void *p) { return free(p), CUDA_SUCCESS; }
EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr p) {
    struct block *block = *find(p);
    if (!block) return CUDA_ERROR_INVALID_VALUE;
    *base = block->key, *bytes = block->bytes;
    return CUDA_SUCCESS;
}

/* Stream-ordered pools grow by chunks. They free unused memory above their threshold at the next synchronisation. */
CUmemoryPool default_pool(int device) {
    defaults[device].device = device;
    return (CUmemoryPool)&defaults[device];
}
static struct pool *current_pool(int device) {
    return chosen[device] ? chosen[device] : (struct pool *)default_pool(device);
}

CUresult pool_take(CUmemoryPool handle, size_t bytes) {
    struct pool *pool = (struct pool *)handle;
    size_t missing = pool->used + bytes > pool->reserved ? pool->used + bytes - pool->reserved : 0;
    size_t grown = (missing + POOL_CHUNK - 1) / POOL_CHUNK * POOL_CHUNK;
    if (grown && take(pool->device, grown)) {
        if (take(pool->device, missing)) return CUDA_ERROR_OUT_OF_MEMORY;
        grown = missing;
    }
    pool->reserved += grown, pool->used += bytes;
    return CUDA_SUCCESS;
}
void trim_pools(int device) {
    pthread_mutex_lock(&simulated_mutex);
    trim(current_pool(device), current_pool(device)->threshold);
    pthread_mutex_unlock(&simulated_mutex);
}
static CUresult from_pool(CUdeviceptr *p, size_t bytes, struct pool *pool, CUstream stream) {
    if (stream_of(stream) && stream_of(stream)->capturing) {
        *p = capture_alloc(stream_of(stream), pool->device, bytes);
        return CUDA_SUCCESS;
    }
    pthread_mutex_lock(&simulated_mutex);
    CUresult result = pool_take((CUmemoryPool)pool, bytes);
    if (!result) *p = fresh(bytes), add(*p, POOLED, pool->device, bytes, pool);
    pthread_mutex_unlock(&simulated_mutex);
    return result;
}
EXPORT CUresult cuMemAllocAsync(CUdeviceptr *p, size_t bytes, CUstream stream) {
    announce("cuMemAllocAsync");
    int device = device_of(stream_of(stream));
    return device < 0 ? CUDA_ERROR_INVALID_CONTEXT : from_pool(p, bytes, current_pool(device), stream);
}
EXPORT CUresult cuMemAllocAsync_ptsz(CUdeviceptr *p, size_t bytes, CUstream stream) {
    return cuMemAllocAsync(p, bytes, stream ? stream : CU_STREAM_PER_THREAD);
}
EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr *p, size_t bytes, CUmemoryPool pool, CUstream stream) {
    return from_pool(p, bytes, (struct pool *)pool, stream);
}
EXPORT CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *p, size_t bytes, CUmemoryPool pool, CUstream stream) {
    return from_pool(p, bytes, (struct pool *)pool, stream ? stream : CU_STREAM_PER_THREAD);
}
EXPORT CUresult cuMemFreeAsync(CUdeviceptr p, CUstream stream) { return (void)stream, drop(p); }
EXPORT CUresult cuMemFreeAsync_ptsz(CUdeviceptr p, CUstream stream) { return (void)stream, drop(p); }
EXPORT CUresult cuMemPoolCreate(CUmemoryPool *made, const CUmemPoolProps *props) {
    announce("cuMemPoolCreate");
    struct pool *pool = calloc(1, sizeof *pool);
    pool->device = props->location.id;
    *made = (CUmemoryPool)pool;
    return CUDA_SUCCESS;
}
EXPORT CUresult cuMemPoolDestroy(CUmemoryPool handle) {
    announce("cuMemPoolDestroy");
    struct pool *pool = (struct pool *)handle;
    if (handle == default_pool(pool->device)) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&simulated_mutex);
    if (chosen[pool->device] == pool) chosen[pool->device] = NULL;
    pool->destroyed = true;
    shrink_destroyed(pool);
    pthread_mutex_unlock(&simulated_mutex);
    return CUDA_SUCCESS;
}
EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value) {
    if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) ((struct pool *)pool)->threshold = *(uint64_t *)value;
    return CUDA_SUCCESS;
}
EXPORT CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value) {
    struct pool *p = (struct pool *)pool;
    if (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) *(uint64_t *)value = p->reserved;
    else if (attribute == CU_MEMPOOL_ATTR_USED_MEM_CURRENT) *(uint64_t *)value = p->used;
    else if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) *(uint64_t *)value = p->threshold;
    else return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}
EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
    announce("cuMemPoolTrimTo");
    pthread_mutex_lock(&simulated_mutex);
    trim((struct pool *)pool, keep);
    pthread_mutex_unlock(&simulated_mutex);
    return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device) {
    return gpu_of(device) ? (*pool = default_pool(device), CUDA_SUCCESS) : CUDA_ERROR_INVALID_DEVICE;
}
EXPORT CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device) {
    return gpu_of(device) ? (*pool = (CUmemoryPool)current_pool(device), CUDA_SUCCESS) : CUDA_ERROR_INVALID_DEVICE;
}
EXPORT CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
    chosen[device] = (struct pool *)pool;
    return CUDA_SUCCESS;
}

/* A handle of virtual memory is a block with a reference for each handle and for each mapping. */
EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *prop,
                            unsigned long long flags) {
    if (flags || bytes % (2 * SIMULATED_MIB)) return CUDA_ERROR_INVALID_VALUE;
    if (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return *handle = fresh(bytes), add(*handle, EXTERNAL, -1, 0, NULL), CUDA_SUCCESS;
    return make((uint64_t *)handle, PHYSICAL, prop->location.id, bytes);
}
EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle) { return drop(handle); }
EXPORT CUresult cuMemAddressReserve(CUdeviceptr *p, size_t bytes, size_t alignment, CUdeviceptr wanted,
                                    unsigned long long flags) {
    pthread_mutex_lock(&simulated_mutex);
    *p = fresh(bytes);
    pthread_mutex_unlock(&simulated_mutex);
    return (void)alignment, (void)wanted, (void)flags, CUDA_SUCCESS;
}
EXPORT CUresult cuMemAddressFree(CUdeviceptr p, size_t bytes) { return (void)p, (void)bytes, CUDA_SUCCESS; }
EXPORT CUresult cuMemMap(CUdeviceptr p, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                         unsigned long long flags) {
    pthread_mutex_lock(&simulated_mutex);
    struct block *block = *find(handle);
    if (block) {
        struct mapping *mapping = malloc(sizeof *mapping);
        *mapping = (struct mapping){p, bytes, block, mappings};
        mappings = mapping;
        block->references++;
    }
    pthread_mutex_unlock(&simulated_mutex);
    return (void)offset, (void)flags, block ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
EXPORT CUresult cuMemUnmap(CUdeviceptr p, size_t bytes) {
    pthread_mutex_lock(&simulated_mutex);
    for (struct mapping **at = &mappings; *at;) {
        struct mapping *mapping = *at;
        if (mapping->start < p || mapping->start >= p + bytes) at = &mapping->next;
        else {
            *at = mapping->next;
            struct block **block = find(mapping->block->key);
            unreference(block);
            free(mapping);
        }
    }
    pthread_mutex_unlock(&simulated_mutex);
    return CUDA_SUCCESS;
}
EXPORT CUresult cuMemSetAccess(CUdeviceptr p, size_t bytes, const void *access, size_t count) {
    return (void)p, (void)bytes, (void)access, (void)count, CUDA_SUCCESS;
}
/* A mapping into a sparse array uses its memory as long as the process lives, because it is never unmapped here. */
struct array_mapping {
    int type;
    uint64_t array;
    int part;
    uint64_t where[4];
    int operation, kind;
    uint64_t handle, offset;
    unsigned rest[4];
};
EXPORT CUresult cuMemMapArrayAsync(struct array_mapping *list, unsigned count, CUstream stream) {
    pthread_mutex_lock(&simulated_mutex);
    for (unsigned i = 0; i < count; i++) {
        struct block *block = *find(list[i].handle);
        if (block && list[i].operation == 1) block->references++;
    }
    pthread_mutex_unlock(&simulated_mutex);
    return (void)stream, CUDA_SUCCESS;
}
EXPORT CUresult cuMemMapArrayAsync_ptsz(struct array_mapping *list, unsigned count, CUstream stream) {
    return cuMemMapArrayAsync(list, count, stream);
}
EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address) {
    pthread_mutex_lock(&simulated_mutex);
    struct mapping *mapping = mappings;
    while (mapping && ((uint64_t)address < mapping->start || (uint64_t)address >= mapping->start + mapping->bytes))
        mapping = mapping->next;
    if (mapping) mapping->block->references++, *handle = mapping->block->key;
    pthread_mutex_unlock(&simulated_mutex);
    return mapping ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *os_handle, int type) {
    pthread_mutex_lock(&simulated_mutex);
    *handle = fresh(1), add(*handle, EXTERNAL, -1, 0, NULL);
    pthread_mutex_unlock(&simulated_mutex);
    return (void)os_handle, (void)type, CUDA_SUCCESS;
}
EXPORT CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *prop, int option) {
    return (void)prop, (void)option, *bytes = 2 * SIMULATED_MIB, CUDA_SUCCESS;
}

static size_t element(int format) {
    return format == 0x20 || format == 3 || format == 0x0a ? 4 : format == 2 || format == 9 || format == 0x10 ? 2 : 1;
}
static size_t volume(const CUDA_ARRAY3D_DESCRIPTOR *d) {
    if (d->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) return 1;
    return d->Width * (d->Height ? d->Height : 1) * (d->Depth ? d->Depth : 1) * d->NumChannels * element(d->Format);
}
EXPORT CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *d) {
    return make((uint64_t *)array, ARRAY, current_device(), volume(d));
}
EXPORT CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *d) {
    CUDA_ARRAY3D_DESCRIPTOR whole = {d->Width, d->Height, 0, d->Format, d->NumChannels, 0};
    return cuArray3DCreate_v2(array, &whole);
}
EXPORT CUresult cuArrayDestroy(CUarray array) { return drop((uint64_t)array); }
EXPORT CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels) {
    CUDA_ARRAY3D_DESCRIPTOR level = *d;
    size_t sum = 0;
    for (unsigned i = 0; i < levels; i++) {
        sum += volume(&level);
        if (level.Width > 1) level.Width /= 2;
        if (level.Height > 1) level.Height /= 2;
        if (level.Depth > 1 && !(d->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP))) level.Depth /= 2;
    }
    return make((uint64_t *)array, ARRAY, current_device(), sum);
}
EXPORT CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) { return drop((uint64_t)array); }

EXPORT CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr p) {
    return memcpy(handle->reserved, &p, sizeof p), CUDA_SUCCESS;
}
EXPORT CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *p, CUipcMemHandle handle, unsigned flags) {
    pthread_mutex_lock(&simulated_mutex);
    *p = fresh(1), add(*p, EXTERNAL, -1, 0, NULL);
    pthread_mutex_unlock(&simulated_mutex);
    return (void)handle, (void)flags, CUDA_SUCCESS;
}
EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr p) { return drop(p); }
EXPORT CUresult cuImportExternalMemory(CUexternalMemory *memory, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *d) {
    return make((uint64_t *)memory, ARRAY, current_device(), d->size);
}
EXPORT CUresult cuDestroyExternalMemory(CUexternalMemory memory) { return drop((uint64_t)memory); }
