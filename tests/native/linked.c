/* A program that is linked with libcuda.so.1: what it takes, the dynamic loader binds. Prints CUDA's answers.
 * It also asks RTLD_NEXT for a function that only libc has, as wrappers of malloc do. */
#define _GNU_SOURCE
#include "base/cuda_types.h"
#include <dlfcn.h>
#include <stdio.h>

CUresult cuInit(unsigned);
CUresult cuDevicePrimaryCtxRetain(CUcontext *, CUdevice);
CUresult cuCtxSetCurrent(CUcontext);
CUresult cuMemAlloc_v2(CUdeviceptr *, size_t);
CUresult cuMemGetInfo_v2(size_t *, size_t *);

int main(void) {
    CUcontext context;
    CUdeviceptr pointer;
    size_t available, total;
    void *next = dlsym(RTLD_NEXT, "malloc"), *versioned = dlvsym(RTLD_DEFAULT, "fork", "GLIBC_2.2.5");
    printf("%d ", cuInit(0));
    printf("%d ", cuDevicePrimaryCtxRetain(&context, 0));
    printf("%d\n", cuCtxSetCurrent(context));
    printf("%d ", cuMemAlloc_v2(&pointer, 200u << 20));
    printf("%d\n", cuMemAlloc_v2(&pointer, 100u << 20));
    printf("%d", cuMemGetInfo_v2(&available, &total));
    printf(" %zu %zu\n", available >> 20, total >> 20);
    printf("%d %d %d\n", next != NULL, versioned != NULL,
           dlsym(RTLD_NEXT, "no_such_function") == NULL && dlerror() != NULL);
    return 0;
}
