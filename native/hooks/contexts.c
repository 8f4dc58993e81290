/* Contexts and modules: what the driver takes for them is measured and counted, and goes with them. */
#define _GNU_SOURCE
#include "hooks/contexts.h"

#include "accounting/cards.h"
#include "base/driver.h"
#include "hooks/hook_table.h"
#include "hooks/init.h"
#include "accounting/allocation_table.h"
#include "accounting/overhead.h"
#include "accounting/pools.h"
#include "timeslice/timeslice.h"

#include <pthread.h>
#include <string.h>

static uint64_t key_of(CUcontext context) { return (uint64_t)(uintptr_t)context; }

uint64_t gputile_owner_of(CUcontext context) {
    struct gputile_allocation held;
    return gputile_allocation_find(GPUTILE_CONTEXT, key_of(context), &held) ? held.owner : key_of(context);
}

/* No address has the highest bit; the lowest are the limits'. */
static uint64_t new_owner(void) {
    static uint64_t last;
    return (uint64_t)1 << 63 | __atomic_add_fetch(&last, 256, __ATOMIC_RELAXED);
}

static void add_context(CUcontext context, int card, uint64_t bytes) {
    gputile_allocation_add((struct gputile_allocation){GPUTILE_CONTEXT, key_of(context), card, bytes, new_owner(), 1});
}

CUresult cuCtxDestroy_v2(CUcontext context);
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device);
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult cuCtxDetach(CUcontext context);

static void give_back(const struct gputile_allocation *taken) {
    if (!taken->bytes) return;
    if (taken->kind == GPUTILE_CONTEXT || taken->kind == GPUTILE_MODULE) gputile_overhead_give_back(taken->card, taken->bytes);
    else gputile_give_back(taken->card, taken->bytes);
}

/* All that a destroyed context held; its owner was asked for before it was destroyed. */
static void release_owner(uint64_t owner) {
    struct gputile_allocation taken;
    if (!owner) return;
    while (gputile_allocation_take_of_owner(owner, &taken)) give_back(&taken);
    gputile_pools_settle();
}

static CUresult begin(CUdevice device, struct gputile_overhead *overhead) {
    if (!gputile_init_checked()) return CUDA_ERROR_NO_DEVICE;
    if (gputile_card_of_device(device) < 0) return CUDA_ERROR_NO_DEVICE;
    gputile_overhead_begin(overhead, device);
    return CUDA_SUCCESS;
}

#define CREATE(call)                                                                                       \
    struct gputile_overhead overhead;                                                                      \
    uint64_t bytes;                                                                                        \
    CUresult result = begin(device, &overhead);                                                            \
    if (result != CUDA_SUCCESS || (result = call) != CUDA_SUCCESS) return result;                          \
    result = gputile_overhead_end(&overhead, &bytes);                                                      \
    if (result != CUDA_SUCCESS) CALL_REAL(cuCtxDestroy, cuCtxDestroy_v2, *context);                        \
    else add_context(*context, overhead.card, bytes);                                                      \
    return result;

GPUTILE_EXPORT CUresult cuCtxCreate(CUcontext *context, unsigned flags, CUdevice device) {
    CREATE(CALL_REAL(cuCtxCreate, cuCtxCreate, context, flags, device))
}

GPUTILE_EXPORT CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device) {
    CREATE(CALL_REAL(cuCtxCreate, cuCtxCreate_v2, context, flags, device))
}

GPUTILE_EXPORT CUresult cuCtxCreate_v3(CUcontext *context, void *affinity, int count, unsigned flags, CUdevice device) {
    CREATE(CALL_REAL(cuCtxCreate, cuCtxCreate_v3, context, affinity, count, flags, device))
}

GPUTILE_EXPORT CUresult cuCtxCreate_v4(CUcontext *context, void *parameters, unsigned flags, CUdevice device) {
    CREATE(CALL_REAL(cuCtxCreate, cuCtxCreate_v4, context, parameters, flags, device))
}

#define DESTROY(call)                                    \
    const uint64_t owner = gputile_owner_of(context);    \
    timeslice_forget_context(context);                        \
    const CUresult result = call;                        \
    if (result == CUDA_SUCCESS) release_owner(owner);             \
    return result;

GPUTILE_EXPORT CUresult cuCtxDestroy(CUcontext context) { DESTROY(CALL_REAL(cuCtxDestroy, cuCtxDestroy, context)) }

GPUTILE_EXPORT CUresult cuCtxDestroy_v2(CUcontext context) { DESTROY(CALL_REAL(cuCtxDestroy, cuCtxDestroy_v2, context)) }

/* A device's primary context is made when it is first retained and destroyed when it is last released. */
enum { MOST_DEVICES = 64 };
/* Recursive, since the driver is called with them held: a profiler's callback may come back here in the same thread. */
static pthread_mutex_t primary_mutex = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static pthread_mutex_t limit_mutex = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static CUcontext primary[MOST_DEVICES];
static unsigned retained[MOST_DEVICES]; /* by this process */

void gputile_contexts_in_child(void) {
    primary_mutex = limit_mutex = (pthread_mutex_t)PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
    memset(primary, 0, sizeof primary), memset(retained, 0, sizeof retained);
}

static int is_active(CUdevice device) {
    unsigned flags;
    int active = 1;
    if (gputile_driver()->cuDevicePrimaryCtxGetState) gputile_driver()->cuDevicePrimaryCtxGetState(device, &flags, &active);
    return active;
}

static CUresult make_primary(CUcontext *context, CUdevice device) {
    struct gputile_overhead overhead;
    uint64_t bytes;
    int was_active = is_active(device);
    CUresult result = begin(device, &overhead);
    if (result == CUDA_SUCCESS) result = CALL_REAL(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, context, device);
    if (result != CUDA_SUCCESS) return result;
    if (device < MOST_DEVICES) primary[device] = *context, retained[device]++;
    if (was_active) return CUDA_SUCCESS;
    result = gputile_overhead_end(&overhead, &bytes);
    if (result != CUDA_SUCCESS) {
        CALL_REAL(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, device);
        if (device < MOST_DEVICES) retained[device]--;
    } else add_context(*context, overhead.card, bytes);
    return result;
}

GPUTILE_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    pthread_mutex_lock(&primary_mutex);
    CUresult result = make_primary(context, device);
    pthread_mutex_unlock(&primary_mutex);
    return result;
}

/* A reset destroys what the context held even while others still retain it. */
#define LET_GO(always, call)                                                                 \
    pthread_mutex_lock(&primary_mutex);                                                      \
    const bool seen = device >= 0 && device < MOST_DEVICES;                                  \
    const uint64_t owner = seen ? gputile_owner_of(primary[device]) : 0;                     \
    if (seen && (always || retained[device] <= 1)) timeslice_forget_context(primary[device]);     \
    CUresult result = call;                                                                  \
    if (result == CUDA_SUCCESS && seen) retained[device] = always || !retained[device] ? 0 : retained[device] - 1; \
    if (result == CUDA_SUCCESS && seen && (always || !is_active(device))) {                  \
        release_owner(owner);                                                                         \
        primary[device] = NULL;                                                              \
    }                                                                                        \
    pthread_mutex_unlock(&primary_mutex);                                                    \
    return result;

GPUTILE_EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
    LET_GO(0, CALL_REAL(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease, device))
}

GPUTILE_EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    LET_GO(0, CALL_REAL(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, device))
}

GPUTILE_EXPORT CUresult cuDevicePrimaryCtxReset(CUdevice device) {
    LET_GO(1, CALL_REAL(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset, device))
}

GPUTILE_EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
    LET_GO(1, CALL_REAL(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2, device))
}

/* The device whose primary context this is, -1 for another; `more` users of it have come. */
static CUdevice device_of_primary(CUcontext context, unsigned more) {
    CUdevice found = -1;
    pthread_mutex_lock(&primary_mutex);
    for (CUdevice device = 0; device < MOST_DEVICES && context; device++)
        if (primary[device] == context) found = device, retained[device] += more;
    pthread_mutex_unlock(&primary_mutex);
    return found;
}

/* Both are of CUDA 3 and still there: a context is destroyed by the last of its users. */
GPUTILE_EXPORT CUresult cuCtxAttach(CUcontext *context, unsigned flags) {
    CUresult result = CALL_REAL(cuCtxAttach, cuCtxAttach, context, flags);
    if (result == CUDA_SUCCESS && device_of_primary(*context, 1) < 0) gputile_allocation_add_reference(GPUTILE_CONTEXT, key_of(*context));
    return result;
}

static CUresult detach_primary(CUcontext context, CUdevice device) {
    LET_GO(0, CALL_REAL(cuCtxDetach, cuCtxDetach, context))
}

GPUTILE_EXPORT CUresult cuCtxDetach(CUcontext context) {
    struct gputile_allocation taken;
    CUdevice device = device_of_primary(context, 0);
    if (device >= 0) return detach_primary(context, device);
    bool last = gputile_allocation_take(GPUTILE_CONTEXT, key_of(context), &taken);
    if (last) timeslice_forget_context(context);
    CUresult result = CALL_REAL(cuCtxDetach, cuCtxDetach, context);
    if (result != CUDA_SUCCESS && last) taken.references = 1, gputile_allocation_add(taken);
    else if (result != CUDA_SUCCESS) gputile_allocation_add_reference(GPUTILE_CONTEXT, key_of(context));
    else if (last) give_back(&taken), release_owner(taken.owner);
    return result;
}

/* What a limit of a context lets kernels take later, without a call that could be counted. */
static uint64_t set_aside(int limit, size_t value, CUdevice device) {
    enum { DEFAULT_STACK = 1024 };
    int processors = 0, threads = 0;
    uint64_t bytes;
    if (limit == CU_LIMIT_MALLOC_HEAP_SIZE || limit == CU_LIMIT_PRINTF_FIFO_SIZE) return value;
    if (limit != CU_LIMIT_STACK_SIZE || value <= DEFAULT_STACK) return 0;
    gputile_driver()->cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
    gputile_driver()->cuDeviceGetAttribute(&threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, device);
    return __builtin_mul_overflow(value - DEFAULT_STACK, (uint64_t)processors * (uint64_t)threads, &bytes) ? UINT64_MAX : bytes;
}

CUresult cuCtxSetLimit(int limit, size_t value);

/* Only the difference is reserved or given back: a new size takes the place of the old one. */
static CUresult resize(int limit, size_t value, int card, uint64_t bytes, uint64_t context) {
    struct gputile_allocation held = {.bytes = 0};
    const uint64_t key = context + (uint64_t)limit;
    bool had = gputile_allocation_find(GPUTILE_HEAP, key, &held);
    uint64_t more = bytes > held.bytes ? bytes - held.bytes : 0;
    CUresult result = more ? gputile_reserve_or_trim(card, more) : CUDA_SUCCESS;
    if (result != CUDA_SUCCESS) return result;
    result = CALL_REAL(cuCtxSetLimit, cuCtxSetLimit, limit, value);
    if (result != CUDA_SUCCESS) return gputile_give_back(card, more), result;
    if (had && !gputile_allocation_take(GPUTILE_HEAP, key, &held)) return gputile_give_back(card, more), result; /* the context is gone */
    if (held.bytes > bytes) gputile_give_back(card, held.bytes - bytes);
    if (bytes) gputile_allocation_add((struct gputile_allocation){GPUTILE_HEAP, key, card, bytes, context, 1});
    return result;
}

GPUTILE_EXPORT CUresult cuCtxSetLimit(int limit, size_t value) {
    uint64_t context;
    CUdevice device;
    int card;
    CUresult result = gputile_current(&card, &context);
    if (result == CUDA_SUCCESS) result = gputile_driver()->cuCtxGetDevice(&device);
    if (result != CUDA_SUCCESS) return result;
    pthread_mutex_lock(&limit_mutex);
    result = resize(limit, value, card, set_aside(limit, value, device), context);
    pthread_mutex_unlock(&limit_mutex);
    return result;
}

CUresult cuModuleUnload(void *module);
CUresult cuLibraryUnload(void *library);

/* Modules that are loaded lazily take their memory at the first launch, where nothing is measured. */
#define LOAD(handle, call, unload)                                                                               \
    struct gputile_overhead overhead = {.card = -1};                                                             \
    uint64_t bytes, context = 0;                                                                                 \
    CUdevice device;                                                                                             \
    int card;                                                                                                    \
    if (!gputile_init()) return CUDA_ERROR_NO_DEVICE;                                                            \
    if (gputile_current(&card, &context) == CUDA_SUCCESS && gputile_driver()->cuCtxGetDevice(&device) == CUDA_SUCCESS) \
        gputile_overhead_begin(&overhead, device);                                                               \
    CUresult result = call;                                                                                      \
    if (result != CUDA_SUCCESS) return result;                                                                   \
    result = gputile_overhead_end(&overhead, &bytes);                                                            \
    if (result != CUDA_SUCCESS) unload;                                                                          \
    else if (bytes)                                                                                              \
        gputile_allocation_add((struct gputile_allocation){GPUTILE_MODULE, (uintptr_t)*handle, overhead.card, bytes, context, 1}); \
    return result;
#define LOAD_MODULE(call) LOAD(module, call, CALL_REAL(cuModuleUnload, cuModuleUnload, *module))
#define LOAD_LIBRARY(call) LOAD(library, call, CALL_REAL(cuLibraryUnload, cuLibraryUnload, *library))

GPUTILE_EXPORT CUresult cuModuleLoad(void **module, const char *file) {
    LOAD_MODULE(CALL_REAL(cuModuleLoad, cuModuleLoad, module, file))
}

GPUTILE_EXPORT CUresult cuModuleLoadData(void **module, const void *image) {
    LOAD_MODULE(CALL_REAL(cuModuleLoadData, cuModuleLoadData, module, image))
}

GPUTILE_EXPORT CUresult cuModuleLoadDataEx(void **module, const void *image, unsigned count, int *options, void **values) {
    LOAD_MODULE(CALL_REAL(cuModuleLoadDataEx, cuModuleLoadDataEx, module, image, count, options, values))
}

GPUTILE_EXPORT CUresult cuModuleLoadFatBinary(void **module, const void *image) {
    LOAD_MODULE(CALL_REAL(cuModuleLoadFatBinary, cuModuleLoadFatBinary, module, image))
}

GPUTILE_EXPORT CUresult cuLibraryLoadData(void **library, const void *code, int *jit, void **jit_values, unsigned jit_count,
                                          int *options, void **values, unsigned count) {
    LOAD_LIBRARY(CALL_REAL(cuLibraryLoadData, cuLibraryLoadData, library, code, jit, jit_values, jit_count, options, values, count))
}

GPUTILE_EXPORT CUresult cuLibraryLoadFromFile(void **library, const char *file, int *jit, void **jit_values, unsigned jit_count,
                                              int *options, void **values, unsigned count) {
    LOAD_LIBRARY(CALL_REAL(cuLibraryLoadFromFile, cuLibraryLoadFromFile, library, file, jit, jit_values, jit_count, options, values, count))
}

static void unloaded(CUresult result, bool held, const struct gputile_allocation *taken) {
    if (held && result == CUDA_SUCCESS) gputile_overhead_give_back(taken->card, taken->bytes);
    else if (held) gputile_allocation_add(*taken);
}

GPUTILE_EXPORT CUresult cuModuleUnload(void *module) {
    struct gputile_allocation taken;
    bool held = gputile_allocation_take(GPUTILE_MODULE, (uintptr_t)module, &taken);
    CUresult result = CALL_REAL(cuModuleUnload, cuModuleUnload, module);
    return unloaded(result, held, &taken), result;
}

GPUTILE_EXPORT CUresult cuLibraryUnload(void *library) {
    struct gputile_allocation taken;
    bool held = gputile_allocation_take(GPUTILE_MODULE, (uintptr_t)library, &taken);
    CUresult result = CALL_REAL(cuLibraryUnload, cuLibraryUnload, library);
    return unloaded(result, held, &taken), result;
}
