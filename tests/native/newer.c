/* A program or library that is linked with a function which only a newer driver has. */
#include "base/cuda_types.h"
#include <stdio.h>

CUresult cuInit(unsigned);
CUresult cuDevicePrimaryCtxRetain(CUcontext *, CUdevice);
CUresult cuMemAllocQuantum(CUdeviceptr *, size_t);

int plugin(void) {
    CUdeviceptr pointer;
    return cuMemAllocQuantum(&pointer, 900 << 20);
}

int main(void) {
    CUcontext context;
    int opened = cuInit(0), retained = cuDevicePrimaryCtxRetain(&context, 0);
    printf("%d %d %d\n", opened, retained, retained ? -1 : plugin());
    return 0;
}
