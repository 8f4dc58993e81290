/* Forks while its threads are inside the library. Usage: forks <threads> <children> [exec | ask].
 *
 * Each child uses the gpu itself, or runs another program, or just ends; with "exec" each runs another program, and
 * with "ask" threads and children do nothing but ask for the gpu. Prints how many children did not do so. */
#define _GNU_SOURCE
#include "base/cuda_types.h"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

CUresult cuInit(unsigned);
CUresult cuDevicePrimaryCtxRetain(CUcontext *, CUdevice);
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice);
CUresult cuCtxSetCurrent(CUcontext);
CUresult cuMemAlloc_v2(CUdeviceptr *, size_t);
CUresult cuMemFree_v2(CUdeviceptr);
CUresult cuMemAllocAsync(CUdeviceptr *, size_t, CUstream);
CUresult cuMemFreeAsync(CUdeviceptr, CUstream);
CUresult cuStreamSynchronize(CUstream);
CUresult cuMemGetInfo_v2(size_t *, size_t *);
CUresult cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **,
                        void **);

enum { WITHIN_S = 60, KINDS = 3 };
static int stop, ask;

/* Everything that takes one of the library's locks; NULL, or what failed. */
static const char *use(void) {
    CUdeviceptr linear, pooled;
    CUcontext context;
    size_t available, total;
    unsigned long long ns = 1000, *kernel[] = {&ns};
    if (cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) return "no context";
    if (cuMemAlloc_v2(&linear, 1 << 20)) return "no linear memory";
    if (cuMemAllocAsync(&pooled, 1 << 20, NULL)) return "no memory from a pool";
    if (cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, (void **)kernel, NULL)) return "no kernel";
    if (cuMemGetInfo_v2(&available, &total) || available > total) return "wrong figures";
    if (cuMemFree_v2(linear) || cuMemFreeAsync(pooled, NULL) || cuStreamSynchronize(NULL))
        return "memory is not taken back";
    return cuDevicePrimaryCtxRelease_v2(0) ? "the context is not taken back" : NULL;
}

static void *work(void *unused) {
    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
        const char *wrong = ask ? cuInit(0) ? "no GPU" : NULL : use();
        if (wrong) fprintf(stderr, "a thread has %s\n", wrong), exit(5);
    }
    return unused;
}

static pid_t child(int kind) {
    pid_t made = fork();
    if (made) return made;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(WITHIN_S); /* one that waits for ever is killed, and so counted */
    if (kind == 0) exit(cuInit(0) || (!ask && use()));
    if (kind == 1) execl("/bin/true", "true", (char *)NULL);
    exit(kind == 1);
}

int main(int count, char **word) {
    pthread_t thread[16];
    CUcontext context;
    int status, failed = 0;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (count < 3 || cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) return 3;
    int threads = atoi(word[1]), children = atoi(word[2]);
    ask = count > 3 && !strcmp(word[3], "ask");
    for (int i = 0; i < threads; i++) pthread_create(&thread[i], NULL, work, NULL);
    for (int i = 0; i < children; i++) {
        pid_t made = child(ask ? 0 : count > 3 ? 1 : i % KINDS);
        if (made < 0 || waitpid(made, &status, 0) != made || status)
            failed++, fprintf(stderr, "child %d: %x\n", i, status);
    }
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    for (int i = 0; i < threads; i++) pthread_join(thread[i], NULL);
    printf("%d\n", failed);
    return 0;
}
