/* A program that keeps gpus busy through the client of the arbiter, on the fake driver.
 *
 * busy SOCKET SECONDS KERNEL_NS STYLE THREADS: prints "ready", then on its end how long its kernels took.
 * STYLE: "async" submits ahead, "sync" waits for each kernel, "alone" is async without the client. SOCKET "" is none.
 * "joint": each kernel is one over all threads' gpus. A part that is submitted keeps its gpu until all others are.
 * SIGTERM ends it early. At SIGUSR1 it loses all pipes and sockets to the file that the environment variable LOST
 * names. The environment variable USAGE names the file that the container's processes share, if they do. The gpus'
 * UUIDs are in the environment variable UUIDS, separated by commas; thread i uses gpu i modulo their number.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "accounting/shared_usage.h"
#include "base/driver.h"
#include "timeslice/timeslice.h"

CUresult cuInit(unsigned);
CUresult cuDevicePrimaryCtxRetain(CUcontext *, CUdevice);
CUresult cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **,
                        void **);
CUresult cuStreamCreate(CUstream *, unsigned);

enum { AHEAD = 256 };
static const char *uuids[16];
static unsigned gpus;
static const char *style;
static uint64_t kernel_ns, end_ns;
static uint64_t launched;
static pthread_barrier_t all;
static int goes_on, joint;

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* Put a file under each number that is a pipe's or a socket's, as a program may that closes what it does not know. */
static void lose_descriptors(int number) {
    (void)number;
    struct stat status;
    int file = open(getenv("LOST"), O_RDWR | O_CREAT | O_APPEND, 0600);
    for (int fd = 3; fd < 1024; fd++)
        if (fstat(fd, &status) == 0 && (S_ISFIFO(status.st_mode) || S_ISSOCK(status.st_mode))) dup2(file, fd);
}

static void end_now(int number) {
    (void)number;
    __atomic_store_n(&end_ns, 0, __ATOMIC_RELAXED);
}

static int go_on(int first) {
    if (!joint) return now() < __atomic_load_n(&end_ns, __ATOMIC_RELAXED);
    pthread_barrier_wait(&all);
    if (first) goes_on = now() < __atomic_load_n(&end_ns, __ATOMIC_RELAXED);
    pthread_barrier_wait(&all);
    return goes_on;
}

static void *work(void *argument) {
    int gpu = (int)((size_t)argument % gpus);
    int with_client = strcmp(style, "alone") != 0;
    CUcontext context;
    CUstream stream;
    CUevent behind[2];
    uint64_t count = 0;
    void *params[] = {&kernel_ns};
    gputile_driver()->cuCtxSetCurrent(NULL);
    if (cuDevicePrimaryCtxRetain(&context, gpu) || gputile_driver()->cuCtxSetCurrent(context)) exit(3);
    cuStreamCreate(&stream, 0);
    gputile_driver()->cuEventCreate(&behind[0], 0), gputile_driver()->cuEventCreate(&behind[1], 0);
    while (go_on(argument == NULL)) {
        if (with_client) timeslice_before(gpu);
        if (joint) pthread_barrier_wait(&all);
        cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL);
        if (with_client) timeslice_after(gpu);
        count++;
        __atomic_add_fetch(&launched, 1, __ATOMIC_RELAXED);
        if (joint || !strcmp(style, "sync")) gputile_driver()->cuStreamSynchronize(stream);
        /* A real driver's queue is full at some depth. */
        if (count % AHEAD == 0) {
            CUevent *oldest = &behind[count / AHEAD % 2];
            if (count > 2 * AHEAD) gputile_driver()->cuEventSynchronize(*oldest);
            gputile_driver()->cuEventRecord(*oldest, stream);
        }
    }
    return NULL;
}

int main(int count, char **argument) {
    pthread_t thread[64];
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a killed test leaves nobody behind */
    if (count < 6 || cuInit(0)) return 2;
    for (char *word = strtok(getenv("UUIDS"), ","); word; word = strtok(NULL, ",")) uuids[gpus++] = word;
    style = argument[4], kernel_ns = strtoull(argument[3], NULL, 10);
    int threads = atoi(argument[5]);
    joint = !strcmp(style, "joint");
    pthread_barrier_init(&all, NULL, (unsigned)threads);
    if (getenv("LOST")) signal(SIGUSR1, lose_descriptors);
    const char *usage = getenv("USAGE"), *wrong;
    if (usage && (wrong = gputile_shared_usage_open(usage))) return fprintf(stderr, "%s: %s\n", usage, wrong), 2;
    if (timeslice_start(argument[1], gpus, uuids)) return 2;
    printf("ready\n"), fflush(stdout);
    if (!getchar()) return 2; /* until it is told to begin */
    end_ns = now() + (uint64_t)(atof(argument[2]) * 1e9);
    signal(SIGTERM, end_now);
    for (int i = 0; i < threads; i++) pthread_create(&thread[i], NULL, work, (void *)(size_t)i);
    for (int i = 0; i < threads; i++) pthread_join(thread[i], NULL);
    printf("%llu\n", (unsigned long long)(launched * kernel_ns));
    return 0;
}
