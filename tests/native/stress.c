/* Takes and gives back memory in every way, at random, in several threads, until it is killed or has done its rounds.
 * Usage: stress <seed> <threads> <rounds>, 0 rounds: for ever. Prints how often memory was refused. */
#include "base/cuda_types.h"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

CUresult cuInit(unsigned);
CUresult cuDevicePrimaryCtxRetain(CUcontext *, CUdevice);
CUresult cuCtxSetCurrent(CUcontext);
CUresult cuMemAlloc_v2(CUdeviceptr *, size_t);
CUresult cuMemAllocManaged(CUdeviceptr *, size_t, unsigned);
CUresult cuMemFree_v2(CUdeviceptr);
CUresult cuMemAllocAsync(CUdeviceptr *, size_t, CUstream);
CUresult cuMemAllocFromPoolAsync(CUdeviceptr *, size_t, CUmemoryPool, CUstream);
CUresult cuMemPoolCreate(CUmemoryPool *, const CUmemPoolProps *);
CUresult cuMemPoolDestroy(CUmemoryPool);
CUresult cuMemFreeAsync(CUdeviceptr, CUstream);
CUresult cuStreamSynchronize(CUstream);
CUresult cuMemCreate(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long);
CUresult cuMemRelease(CUmemGenericAllocationHandle);
CUresult cuArrayCreate_v2(CUarray *, const CUDA_ARRAY_DESCRIPTOR *);
CUresult cuArrayDestroy(CUarray);
CUresult cuMemGetInfo_v2(size_t *, size_t *);
CUresult cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **,
                        void **);

enum { HELD = 6 };
struct held {
    int kind;
    unsigned long long key;
};
static int rounds;
static unsigned seed;
static long refused;
static CUcontext context;

static int take(struct held *held, unsigned choice, size_t bytes) {
    CUmemAllocationProp prop = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUDA_ARRAY_DESCRIPTOR array = {1024, bytes / 4096, 0x20, 1};
    CUmemPoolProps props = {.allocType = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemoryPool pool;
    CUarray made;
    held->kind = (int)(choice % 6) + 1;
    switch (held->kind) {
    case 1: return cuMemAlloc_v2(&held->key, bytes);
    case 2: return cuMemAllocManaged(&held->key, bytes, 1);
    case 3: return cuMemAllocAsync(&held->key, bytes, NULL);
    case 4: return cuMemCreate(&held->key, bytes, &prop, 0);
    case 5: { /* destroyed while it is in use */
        if (cuMemPoolCreate(&pool, &props)) return CUDA_ERROR_UNKNOWN;
        int result = cuMemAllocFromPoolAsync(&held->key, bytes, pool, NULL);
        return cuMemPoolDestroy(pool) ? CUDA_ERROR_UNKNOWN : result;
    }
    default: {
        int result = cuArrayCreate_v2(&made, &array);
        held->key = (unsigned long long)(uintptr_t)made;
        return result;
    }
    }
}

static void give(struct held *held) {
    if (held->kind == 1 || held->kind == 2) cuMemFree_v2(held->key);
    else if (held->kind == 3) cuMemFreeAsync(held->key, NULL), cuStreamSynchronize(NULL);
    else if (held->kind == 5) cuMemFreeAsync(held->key, NULL);
    else if (held->kind == 4) cuMemRelease(held->key);
    else if (held->kind == 6) cuArrayDestroy((CUarray)(uintptr_t)held->key);
    held->kind = 0;
}

static void *work(void *argument) {
    unsigned state = seed * 1000 + (unsigned)(uintptr_t)argument;
    struct held held[HELD] = {{0, 0}};
    size_t available, total;
    unsigned long long ns = 0, *kernel[] = {&ns};
    cuCtxSetCurrent(context);
    for (int round = 0; !rounds || round < rounds; round++) {
        if (!rounds) usleep(2000); /* for 64 of them on a small machine */
        struct held *one = &held[rand_r(&state) % HELD];
        if (one->kind) give(one);
        else {
            int result = take(one, (unsigned)rand_r(&state), (size_t)(1 + rand_r(&state) % 8) * 2 << 20);
            if (result == CUDA_ERROR_OUT_OF_MEMORY) __atomic_fetch_add(&refused, 1, __ATOMIC_RELAXED);
            else if (result != CUDA_SUCCESS) fprintf(stderr, "%d\n", result), exit(1);
            if (result != CUDA_SUCCESS) one->kind = 0;
        }
        if (round % 16 == 0 && (cuMemGetInfo_v2(&available, &total) != CUDA_SUCCESS || available > total)) exit(2);
        if (round % 16 == 1) cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, (void **)kernel, NULL);
    }
    for (int i = 0; i < HELD; i++)
        if (held[i].kind) give(&held[i]);
    return NULL;
}

int main(int count, char **word) {
    pthread_t thread[16];
    if (count != 4) return 3;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a killed test leaves nobody behind */
    seed = (unsigned)atoi(word[1]), rounds = atoi(word[3]);
    int threads = atoi(word[2]);
    int opened = cuInit(0), retained = cuDevicePrimaryCtxRetain(&context, 0);
    if (opened || retained) return fprintf(stderr, "cuInit %d, context %d\n", opened, retained), 4;
    puts("started"), fflush(stdout);
    for (int i = 0; i < threads; i++) pthread_create(&thread[i], NULL, work, (void *)(uintptr_t)i);
    for (int i = 0; i < threads; i++) pthread_join(thread[i], NULL);
    printf("%ld\n", refused);
    return 0;
}
