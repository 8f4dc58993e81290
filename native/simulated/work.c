/* Simulates streams, events and work. A GPU executes the work of all processes one by one, in the order of submission.
 *
 * No thread runs and no processor is busy. A submission moves the time at which the GPU is free, which is an atomic in
 * the machine's file. A thread that synchronises sleeps until its stream is finished. A kernel lasts for
 * *(uint64_t *)kernelParams[0] nanoseconds, or for 1000 for each block of the grid if kernelParams is NULL.
 */
#define _GNU_SOURCE
#include "simulated/simulated.h"
#include <stdlib.h>
#include <time.h>

struct event {
    uint64_t at_ns;
    bool recorded;
};
static struct {
    uint64_t all_ns, legacy_ns;
} done[SIMULATED_MOST_GPUS];
static _Thread_local struct stream own_stream = {.per_thread = true};
static pthread_mutex_t work_mutex = PTHREAD_MUTEX_INITIALIZER;

void work_in_child(void) { pthread_mutex_init(&work_mutex, NULL); }

uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void sleep_until(uint64_t at) {
    struct timespec until = {.tv_sec = (time_t)(at / 1000000000), .tv_nsec = (long)(at % 1000000000)};
    if (at > now_ns())
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL)) continue;
}

struct stream *stream_of(CUstream stream) {
    if (!stream || stream == CU_STREAM_LEGACY) return NULL;
    return stream == CU_STREAM_PER_THREAD ? &own_stream : (struct stream *)stream;
}

int device_of(struct stream *stream) {
    return stream && !stream->per_thread ? stream->context->device : current_device();
}

void submit(CUstream handle, uint64_t ns, bool kernel) {
    struct stream *stream = stream_of(handle);
    int device = device_of(stream);
    struct simulated_gpu *gpu = gpu_of(device);
    if (!gpu) return;
    if (stream && stream->capturing) return capture_work(stream, ns);
    pthread_mutex_lock(&work_mutex);
    uint64_t after = stream ? stream->done_at_ns : done[device].all_ns, free_at, end;
    if (stream && after < done[device].legacy_ns) after = done[device].legacy_ns;
    do {
        free_at = __atomic_load_n(&gpu->free_at_ns, __ATOMIC_ACQUIRE);
        uint64_t now = now_ns(), start = after > now ? after : now;
        end = (free_at > start ? free_at : start) + ns;
    } while (!__atomic_compare_exchange_n(&gpu->free_at_ns, &free_at, end, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED));
    if (stream) stream->done_at_ns = end;
    else done[device].legacy_ns = end;
    if (end > done[device].all_ns) done[device].all_ns = end;
    pthread_mutex_unlock(&work_mutex);
    account_work(device, ns, kernel);
}

static uint64_t done_at(CUstream handle) {
    struct stream *stream = stream_of(handle);
    int device = device_of(stream);
    if (device < 0) return 0;
    pthread_mutex_lock(&work_mutex);
    uint64_t at = stream ? stream->done_at_ns : done[device].all_ns;
    pthread_mutex_unlock(&work_mutex);
    return at;
}

void finish(CUstream stream) { sleep_until(done_at(stream)); }

static CUresult synchronize(CUstream stream) {
    int device = device_of(stream_of(stream));
    if (device < 0) return CUDA_ERROR_INVALID_CONTEXT;
    finish(stream);
    trim_pools(device);
    return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxSynchronize(void) {
    must_live(current_context(), "cuCtxSynchronize");
    CUresult result = synchronize(NULL);
    return must_live(current_context(), "cuCtxSynchronize"), result;
}
EXPORT CUresult cuStreamSynchronize(CUstream stream) { return synchronize(stream); }
EXPORT CUresult cuStreamSynchronize_ptsz(CUstream stream) {
    return synchronize(stream ? stream : CU_STREAM_PER_THREAD);
}
EXPORT CUresult cuStreamQuery(CUstream stream) {
    return done_at(stream) <= now_ns() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
EXPORT CUresult cuStreamCreate(CUstream *made, unsigned flags) {
    if (!current_context()) return CUDA_ERROR_INVALID_CONTEXT;
    struct stream *stream = calloc(1, sizeof *stream);
    stream->context = current_context();
    *made = (CUstream)stream;
    return (void)flags, CUDA_SUCCESS;
}
EXPORT CUresult cuStreamCreateWithPriority(CUstream *made, unsigned flags, int priority) {
    return (void)priority, cuStreamCreate(made, flags);
}
EXPORT CUresult cuStreamDestroy_v2(CUstream stream) { return free(stream), CUDA_SUCCESS; }
EXPORT CUresult cuStreamGetCtx(CUstream handle, CUcontext *context) {
    struct stream *stream = stream_of(handle);
    *context = (CUcontext)(stream && !stream->per_thread ? stream->context : current_context());
    return *context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
EXPORT CUresult cuStreamGetDevice(CUstream handle, CUdevice *device) {
    if (machine->header.driver_version < 12080) return CUDA_ERROR_NOT_SUPPORTED;
    *device = device_of(stream_of(handle));
    return *device >= 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
EXPORT CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned flags) {
    struct stream *stream = stream_of(handle);
    uint64_t at = ((struct event *)event)->at_ns;
    if (stream && stream->done_at_ns < at) stream->done_at_ns = at;
    return (void)flags, CUDA_SUCCESS;
}

EXPORT CUresult cuEventCreate(CUevent *event, unsigned flags) {
    struct event *made = calloc(1, sizeof *made);
    *event = (CUevent)made;
    return (void)flags, made ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
EXPORT CUresult cuEventDestroy_v2(CUevent event) { return free(event), CUDA_SUCCESS; }
EXPORT CUresult cuEventRecord(CUevent handle, CUstream stream) {
    struct event *event = (struct event *)handle;
    uint64_t at = done_at(stream), now = now_ns();
    event->at_ns = at > now ? at : now, event->recorded = true;
    return CUDA_SUCCESS;
}
EXPORT CUresult cuEventRecord_ptsz(CUevent event, CUstream stream) {
    return cuEventRecord(event, stream ? stream : CU_STREAM_PER_THREAD);
}
EXPORT CUresult cuEventQuery(CUevent event) {
    return ((struct event *)event)->at_ns <= now_ns() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
EXPORT CUresult cuEventSynchronize(CUevent event) { return sleep_until(((struct event *)event)->at_ns), CUDA_SUCCESS; }
EXPORT CUresult cuEventElapsedTime(float *ms, CUevent from, CUevent to) {
    struct event *a = (struct event *)from, *b = (struct event *)to;
    if (!a->recorded || !b->recorded) return CUDA_ERROR_INVALID_HANDLE;
    if (b->at_ns > now_ns()) return CUDA_ERROR_NOT_READY;
    *ms = (float)((double)(int64_t)(b->at_ns - a->at_ns) / 1e6);
    return CUDA_SUCCESS;
}

static CUresult launch(uint64_t blocks, CUstream stream, void **params) {
    if (!current_context()) return CUDA_ERROR_INVALID_CONTEXT;
    submit(stream, params ? *(uint64_t *)params[0] : blocks * 1000, true);
    return CUDA_SUCCESS;
}
#define KERNEL_PARAMETERS                                                                                       \
    void *function, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz, unsigned shared, \
        CUstream stream, void **params
#define IGNORE_KERNEL (void)function, (void)bx, (void)by, (void)bz, (void)shared
EXPORT CUresult cuLaunchKernel(KERNEL_PARAMETERS, void **extra) {
    return (void)extra, IGNORE_KERNEL, launch((uint64_t)x * y * z, stream, params);
}
EXPORT CUresult cuLaunchKernel_ptsz(KERNEL_PARAMETERS, void **extra) {
    return (void)extra, IGNORE_KERNEL, launch((uint64_t)x * y * z, stream ? stream : CU_STREAM_PER_THREAD, params);
}
EXPORT CUresult cuLaunchCooperativeKernel(KERNEL_PARAMETERS) {
    return IGNORE_KERNEL, launch((uint64_t)x * y * z, stream, params);
}
EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig *c, void *function, void **params, void **extra) {
    return (void)function, (void)extra, launch((uint64_t)c->gridDimX * c->gridDimY * c->gridDimZ, c->hStream, params);
}
EXPORT CUresult cuLaunchHostFunc(CUstream stream, void (*function)(void *), void *data) {
    return finish(stream), function(data), CUDA_SUCCESS;
}

static CUresult copy(size_t bytes, CUstream stream, bool wait) {
    if (!current_context()) return CUDA_ERROR_INVALID_CONTEXT;
    uint64_t rate = gpu_of(current_device())->bytes_per_us;
    submit(stream, rate ? bytes * 1000 / rate : 0, false);
    if (wait) finish(stream);
    return CUDA_SUCCESS;
}
EXPORT CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t n) {
    return (void)to, (void)from, copy(n, NULL, true);
}
EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t n) {
    return (void)to, (void)from, copy(n, NULL, true);
}
EXPORT CUresult cuMemcpyHtoD_v2_ptds(CUdeviceptr to, const void *from, size_t n) {
    return (void)to, (void)from, copy(n, CU_STREAM_PER_THREAD, true);
}
EXPORT CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t n) {
    return (void)to, (void)from, copy(n, NULL, true);
}
EXPORT CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t n) {
    return (void)to, (void)from, copy(n, NULL, true);
}
EXPORT CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s) {
    return (void)to, (void)from, copy(n, s, false);
}
EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t n, CUstream s) {
    return (void)to, (void)from, copy(n, s, false);
}
EXPORT CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t n, CUstream s) {
    return (void)to, (void)from, copy(n, s, false);
}
EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s) {
    return (void)to, (void)from, copy(n, s, false);
}
EXPORT CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char v, size_t n) {
    return (void)to, (void)v, copy(n, NULL, false);
}
EXPORT CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char v, size_t n, CUstream s) {
    return (void)to, (void)v, copy(n, s, false);
}
EXPORT CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned v, size_t n) {
    return (void)to, (void)v, copy(4 * n, NULL, false);
}
EXPORT CUresult cuMemsetD32Async(CUdeviceptr to, unsigned v, size_t n, CUstream s) {
    return (void)to, (void)v, copy(4 * n, s, false);
}
