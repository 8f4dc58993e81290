/* Threads that are cancelled at any moment inside the library; the rest of the process goes on.
 *
 * cancel ROUNDS [contexts]: prints "done". A thread that was cancelled may leave the MiB, or the context, it had just got.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef int CUresult;
CUresult cuInit(unsigned);
CUresult cuDevicePrimaryCtxRetain(void **, int);
CUresult cuCtxSetCurrent(void *);
CUresult cuCtxCreate_v2(void **, unsigned, int);
CUresult cuCtxDestroy_v2(void *);
CUresult cuMemAlloc_v2(unsigned long long *, size_t);
CUresult cuMemFree_v2(unsigned long long);
CUresult cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                        void **);

static void *context;
static int contexts;

static int once(void) {
    static unsigned long long short_ns = 20000;
    unsigned long long address;
    void *own;
    if (contexts) return cuCtxCreate_v2(&own, 0, 0) == 0 && cuCtxDestroy_v2(own) == 0;
    void *parameters[] = {&short_ns};
    if (cuMemAlloc_v2(&address, 1 << 20)) return 0;
    cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL);
    return cuMemFree_v2(address) == 0;
}

static void *work(void *unused) {
    (void)unused;
    cuCtxSetCurrent(context);
    while (once()) pthread_testcancel();
    exit(3);
}

int main(int count, char **argument) {
    pthread_t thread;
    if (count < 2 || cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) return 2;
    contexts = count > 2;
    alarm(100);
    for (int i = 0; i < atoi(argument[1]); i++) {
        pthread_create(&thread, NULL, work, NULL);
        usleep((useconds_t)(i % 7) * 300);
        pthread_cancel(thread);
        pthread_join(thread, NULL);
        if (!once()) return 4;
    }
    printf("done\n");
    return 0;
}
