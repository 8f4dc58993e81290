/* Simulates devices, contexts and modules. Contexts and modules use memory that no call requests. */
#include "simulated/simulated.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_DEPTH = 16 };
#define MOST_HEAP (768 * SIMULATED_MIB) /* the driver refuses a larger heap */
static _Thread_local struct context *stack[MOST_DEPTH];
static _Thread_local int depth;
static struct {
    struct context context;
    int retained;
} primary[SIMULATED_MOST_GPUS];

static struct context *spare; /* destroyed contexts, to be used again */

void contexts_in_child(void) { memset(primary, 0, sizeof primary), depth = 0, spare = NULL; }

struct context *current_context(void) { return depth ? stack[depth - 1] : NULL; }
int current_device(void) { return current_context() ? current_context()->device : -1; }

EXPORT CUresult cuInit(unsigned flags) { return flags ? CUDA_ERROR_INVALID_VALUE : simulated_open(); }

EXPORT CUresult cuDriverGetVersion(int *version) {
    *version = machine ? (int)machine->header.driver_version : 13000;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGetErrorName(CUresult error, const char **name) {
    *name = error == CUDA_SUCCESS               ? "CUDA_SUCCESS"
            : error == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
                                                : "CUDA_ERROR";
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetCount(int *count) {
    *count = visible_count();
    return machine ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    *device = ordinal;
    return !machine ? CUDA_ERROR_NOT_INITIALIZED : gpu_of(ordinal) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

EXPORT CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
    snprintf(name, (size_t)length, "Simulated GPU");
    return gpu_of(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

EXPORT CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device) {
    if (!gpu_of(device)) return CUDA_ERROR_INVALID_DEVICE;
    memcpy(uuid->bytes, gpu_of(device)->uuid, 16);
    return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) { return cuDeviceGetUuid(uuid, device); }

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    if (!gpu_of(device)) return CUDA_ERROR_INVALID_DEVICE;
    *bytes = gpu_of(device)->total;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
    if (!gpu_of(device)) return CUDA_ERROR_INVALID_DEVICE;
    *value = attribute == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT             ? 16
             : attribute == CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR ? 2048
                                                                               : 1;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemGetInfo_v2(size_t *available, size_t *total) {
    if (!current_context()) return CUDA_ERROR_INVALID_CONTEXT;
    *total = gpu_of(current_device())->total;
    *available = *total - used_on(current_device());
    return CUDA_SUCCESS;
}

void must_live(const struct context *context, const char *call) {
    if (!context || !context->gone) return;
    fprintf(stderr, "fake CUDA: %s with a context that is destroyed\n", call);
    abort();
}

/* The next context gets the address of the context that was destroyed last, in whichever thread. */
static struct context *new_context(void) {
    pthread_mutex_lock(&simulated_mutex);
    struct context *context = spare;
    if (context) spare = context->spare;
    pthread_mutex_unlock(&simulated_mutex);
    if (!context) context = malloc(sizeof *context);
    *context = (struct context){.users = 1};
    return context;
}

static CUresult create(CUcontext *made, int device) {
    if (!gpu_of(device)) return CUDA_ERROR_INVALID_DEVICE;
    usleep(50); /* a thread may be cancelled here, as in a real driver, which opens files */
    CUresult result = take(device, gpu_of(device)->context_bytes);
    if (result) return result;
    struct context *context = new_context();
    context->device = device;
    *made = (CUcontext)context;
    if (depth < MOST_DEPTH) stack[depth++] = context;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxCreate_v2(CUcontext *made, unsigned flags, CUdevice device) {
    return (void)flags, create(made, device);
}
EXPORT CUresult cuCtxCreate_v3(CUcontext *made, void *affinity, int n, unsigned flags, CUdevice device) {
    return (void)affinity, (void)n, (void)flags, create(made, device);
}
EXPORT CUresult cuCtxCreate_v4(CUcontext *made, void *params, unsigned flags, CUdevice device) {
    return (void)params, (void)flags, create(made, device);
}

/* The context is destroyed before the call returns. If a test names a file, the call waits until it appears and is
 * removed. */
static void answer_late(void) {
    const char *file = getenv("GPUTILE_FAKE_DESTROYING");
    if (!file) return;
    close(creat(file, 0600));
    while (access(file, F_OK) == 0) usleep(1000);
}

EXPORT CUresult cuCtxDestroy_v2(CUcontext handle) {
    struct context *context = (struct context *)handle;
    if (!context || context->primary) return CUDA_ERROR_INVALID_CONTEXT;
    if (current_context() == context) depth--;
    context->gone = true; /* the memory of the context stays, so that a later use is detected */
    usleep(2000);
    give(context->device, gpu_of(context->device)->context_bytes + context->extra);
    pthread_mutex_lock(&simulated_mutex);
    context->spare = spare, spare = context;
    pthread_mutex_unlock(&simulated_mutex);
    answer_late();
    return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxAttach(CUcontext *context, unsigned flags) {
    *context = (CUcontext)current_context();
    if (!*context || flags) return CUDA_ERROR_INVALID_CONTEXT;
    current_context()->users++;
    return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxDetach(CUcontext handle) {
    struct context *context = (struct context *)handle;
    if (!context || context != current_context()) return CUDA_ERROR_INVALID_CONTEXT;
    return --context->users ? CUDA_SUCCESS : cuCtxDestroy_v2(handle);
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *made, CUdevice device) {
    announce("cuDevicePrimaryCtxRetain");
    if (!gpu_of(device)) return CUDA_ERROR_INVALID_DEVICE;
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&simulated_mutex);
    if (!primary[device].retained) result = take(device, gpu_of(device)->context_bytes);
    if (!result) {
        primary[device].retained++;
        primary[device].context =
            (struct context){.device = device, .primary = true, .extra = primary[device].context.extra};
        *made = (CUcontext)&primary[device].context;
    }
    pthread_mutex_unlock(&simulated_mutex);
    return result;
}

static CUresult release(int device, bool all) {
    if (!gpu_of(device)) return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&simulated_mutex);
    bool held = primary[device].retained > 0;
    if (held) {
        primary[device].retained = all ? 0 : primary[device].retained - 1;
        if (!primary[device].retained) {
            primary[device].context.gone = true;
            give(device, gpu_of(device)->context_bytes + primary[device].context.extra);
            primary[device].context.extra = 0;
        }
    }
    pthread_mutex_unlock(&simulated_mutex);
    return held || all ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) { return release(device, false); }
EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice device) { return release(device, false); }
EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) { return release(device, true); }

EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    *flags = 0, *active = primary[device].retained > 0;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *context) {
    *context = (CUcontext)current_context();
    return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxSetCurrent(CUcontext context) {
    if (!context) depth = depth ? depth - 1 : 0;
    else if (depth) stack[depth - 1] = (struct context *)context;
    else stack[depth++] = (struct context *)context;
    return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context) {
    must_live((struct context *)context, "cuCtxPushCurrent");
    if (depth == MOST_DEPTH) return CUDA_ERROR_INVALID_CONTEXT;
    stack[depth++] = (struct context *)context;
    return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *context) {
    if (!depth) return CUDA_ERROR_INVALID_CONTEXT;
    depth--;
    if (context) *context = (CUcontext)stack[depth];
    return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxGetDevice(CUdevice *device) {
    if (!current_context()) return CUDA_ERROR_INVALID_CONTEXT;
    *device = current_device();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSetLimit(int limit, size_t value) {
    announce("cuCtxSetLimit");
    struct context *context = current_context();
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    if (limit != CU_LIMIT_MALLOC_HEAP_SIZE) return CUDA_SUCCESS;
    if (value > MOST_HEAP) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = value > context->extra ? take(context->device, value - context->extra) : CUDA_SUCCESS;
    if (result) return result;
    if (value < context->extra) give(context->device, context->extra - value);
    context->extra = value;
    return CUDA_SUCCESS;
}

static CUresult load(void **module, const void *image) {
    if (!current_context()) return CUDA_ERROR_INVALID_CONTEXT;
    (void)image;
    CUresult result = take(current_device(), gpu_of(current_device())->module_bytes);
    if (result) return result;
    int *device = malloc(sizeof *device);
    *device = current_device();
    *module = device;
    return CUDA_SUCCESS;
}
static CUresult unload(void *module) {
    give(*(int *)module, gpu_of(*(int *)module)->module_bytes);
    free(module);
    return CUDA_SUCCESS;
}
EXPORT CUresult cuModuleLoad(void **module, const char *name) { return load(module, name); }
EXPORT CUresult cuModuleLoadData(void **module, const void *image) { return load(module, image); }
EXPORT CUresult cuModuleLoadDataEx(void **module, const void *image, unsigned n, int *options, void **values) {
    return (void)n, (void)options, (void)values, load(module, image);
}
EXPORT CUresult cuModuleLoadFatBinary(void **module, const void *image) { return load(module, image); }
EXPORT CUresult cuModuleUnload(void *module) { return unload(module); }
EXPORT CUresult cuModuleGetFunction(void **function, void *module, const char *name) {
    *function = module;
    return (void)name, CUDA_SUCCESS;
}
EXPORT CUresult cuLibraryLoadData(void **library, const void *image, int *options, void **values, unsigned n, int *more,
                                  void **more_values, unsigned m) {
    return (void)options, (void)values, (void)n, (void)more, (void)more_values, (void)m, load(library, image);
}
EXPORT CUresult cuLibraryUnload(void *library) { return unload(library); }
EXPORT CUresult cuGetExportTable(const void **table, const CUuuid *id) {
    static const void *nothing[4] = {(void *)32, 0, 0, 0};
    *table = nothing;
    return (void)id, CUDA_SUCCESS;
}
