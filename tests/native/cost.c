/* What a call costs: nanoseconds of the fastest of many rounds. Run with and without the library. */
#include "base/cuda_types.h"
#include <stdint.h>
#include <stdio.h>
#include <time.h>

CUresult cuInit(unsigned);
CUresult cuDevicePrimaryCtxRetain(CUcontext *, CUdevice);
CUresult cuCtxSetCurrent(CUcontext);
CUresult cuMemAlloc_v2(CUdeviceptr *, size_t);
CUresult cuMemFree_v2(CUdeviceptr);
CUresult cuMemAllocAsync(CUdeviceptr *, size_t, CUstream);
CUresult cuMemFreeAsync(CUdeviceptr, CUstream);
CUresult cuMemGetInfo_v2(size_t *, size_t *);
CUresult cuStreamCreate(CUstream *, unsigned);
CUresult cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **,
                        void **);

enum { ROUNDS = 50, CALLS = 2000 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e9 * (double)t.tv_sec + (double)t.tv_nsec;
}

#define MEASURE(name, call)                            \
    do {                                               \
        double best = 1e18;                            \
        for (int round = 0; round < ROUNDS; round++) { \
            double start = now();                      \
            for (int i = 0; i < CALLS; i++) { call; }  \
            double each = (now() - start) / CALLS;     \
            if (each < best) best = each;              \
        }                                              \
        printf("%s %.0f\n", name, best);               \
    } while (0)

int main(void) {
    CUcontext context;
    CUdeviceptr p, kept;
    CUstream stream;
    size_t available, total;
    uint64_t none = 0, *kernel[] = {&none};
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) return 1;
    if (cuStreamCreate(&stream, 0) || cuMemAllocAsync(&kept, 2 << 20, stream)) return 2;
    MEASURE("cuMemAlloc+cuMemFree", cuMemAlloc_v2(&p, 2 << 20); cuMemFree_v2(p));
    MEASURE("cuMemAllocAsync+cuMemFreeAsync", cuMemAllocAsync(&p, 2 << 20, stream); cuMemFreeAsync(p, stream));
    MEASURE("cuMemGetInfo", cuMemGetInfo_v2(&available, &total));
    MEASURE("cuLaunchKernel", cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, stream, (void **)kernel, NULL));
    return 0;
}
