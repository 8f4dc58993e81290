/* Lets submitting threads pass during this container's turn on the GPU, and blocks them at other times. */
#define _GNU_SOURCE
#include "timeslice/timeslice.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "base/driver.h"
#include "base/fork_handlers.h"
#include "base/pthread_compat.h"
#include "timeslice/drainer.h"
#include "timeslice/gpu.h"
#include "timeslice/keeper.h"
#include "timeslice/threadless.h"

enum { ONE_WAIT_MS = 100 };

static pthread_mutex_t start_mutex = PTHREAD_MUTEX_INITIALIZER;
static bool started;
/* The depth of this thread's nested calls. Only the outermost call passes the gate. */
static _Thread_local int depth;
static _Thread_local enum { NOT, BY_GATE, BY_ITSELF } passed;
static _Thread_local int cancelling; /* a thread that is cancelled would never count as finished */

/* Whether a thread that is counted in `passes` may submit now. */
static bool open_to(struct timeslice_gpu *gpu, uint64_t passes) {
    int gate = __atomic_load_n(&gpu->gate, __ATOMIC_SEQ_CST);
    if (gate != TIMESLICE_METERED) return gate == TIMESLICE_WIDE;
    if (timeslice_now() >= __atomic_load_n(&gpu->end, __ATOMIC_RELAXED)) return false;
    return TIMESLICE_FINISHED(passes) + TIMESLICE_INSIDE(passes) <=
           __atomic_load_n(&gpu->ahead_until, __ATOMIC_RELAXED);
}

static bool enter(struct timeslice_gpu *gpu) {
    uint64_t passes = __atomic_add_fetch(&gpu->passes, 1, __ATOMIC_SEQ_CST);
    if (open_to(gpu, passes)) return true;
    __atomic_sub_fetch(&gpu->passes, 1, __ATOMIC_SEQ_CST);
    return false;
}

static void wait_at(struct timeslice_gpu *gpu) {
    struct timespec until;
    pthread_mutex_lock(&gpu->mutex);
    __atomic_add_fetch(&gpu->waiting, 1, __ATOMIC_SEQ_CST);
    timeslice_wake_keeper();
    pthread_cond_broadcast(&gpu->changed); /* to wake an idle drainer */
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += ONE_WAIT_MS * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000, until.tv_nsec %= 1000000000;
    if (!open_to(gpu, __atomic_load_n(&gpu->passes, __ATOMIC_SEQ_CST) + 1))
        pthread_cond_timedwait(&gpu->changed, &gpu->mutex, &until);
    __atomic_sub_fetch(&gpu->waiting, 1, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&gpu->mutex);
}

/* Record the current context, so that the drainer waits for the context's work. */
static void note_context(struct timeslice_gpu *gpu) {
    CUcontext context = NULL;
    if (!gputile_driver()->cuCtxGetCurrent || gputile_driver()->cuCtxGetCurrent(&context) || !context) return;
    for (int i = 0; i < TIMESLICE_MOST_CONTEXTS; i++) {
        void *known = __atomic_load_n(&gpu->context[i], __ATOMIC_ACQUIRE);
        if (known == context) return;
        if (!known &&
            __atomic_compare_exchange_n(&gpu->context[i], &known, context, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
            return;
        if (known == context) return;
    }
    __atomic_store_n(&gpu->context[TIMESLICE_MOST_CONTEXTS - 1], context, __ATOMIC_RELEASE);
}

static void leave_at_exit(void) {
    __atomic_store_n(&timeslice_process.ended, true, __ATOMIC_SEQ_CST);
    for (unsigned i = 0; i < timeslice_process.count; i++)
        timeslice_set_gate(&timeslice_process.gpu[i], TIMESLICE_WIDE, 0);
    timeslice_drainers_leave();
}

static bool run(void) {
    static bool registered;
    if (timeslice_threads_missing()) return false;
    pthread_mutex_lock(&start_mutex);
    if (!timeslice_process.running) {
        /* These are sockets because send and recv fail if the program reuses the number between check and use. */
        int ends[2] = {-1, -1};
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) ends[0] = ends[1] = -1;
        gputile_guarded_fd_close(&timeslice_process.woken),
            gputile_guarded_fd_close(&timeslice_process.wake); /* after a failed start */
        gputile_guarded_fd_set(&timeslice_process.woken, ends[0]),
            gputile_guarded_fd_set(&timeslice_process.wake, ends[1]);
        /* The handler is registered late, so that it runs before the driver's exit handler. */
        if (!registered) registered = atexit(leave_at_exit) == 0;
        /* This comes first, because the keeper may end at once. Without the sockets, the keeper checks periodically. */
        __atomic_store_n(&timeslice_process.running, true, __ATOMIC_SEQ_CST);
        if (!timeslice_keeper_start()) {
            timeslice_threads_failed();
            __atomic_store_n(&timeslice_process.running, false, __ATOMIC_SEQ_CST);
        }
    }
    bool runs = timeslice_process.running;
    pthread_mutex_unlock(&start_mutex);
    return runs;
}

static void prepare(void) {
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    gputile_pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    for (unsigned i = 0; i < GPUTILE_MOST_GPUS; i++) {
        struct timeslice_gpu *gpu = &timeslice_process.gpu[i];
        memset(gpu, 0, sizeof *gpu);
        pthread_mutex_init(&gpu->mutex, NULL);
        pthread_cond_init(&gpu->changed, &monotonic);
    }
    pthread_condattr_destroy(&monotonic);
}

int timeslice_start(const char *socket_path, unsigned gpu_count, const char *const *uuids) {
    if (!socket_path || strlen(socket_path) >= sizeof timeslice_process.socket_path || gpu_count > GPUTILE_MOST_GPUS)
        return -1;
    if (!*socket_path) return 0;
    pthread_mutex_lock(&start_mutex);
    if (!started) {
        strcpy(timeslice_process.socket_path, socket_path);
        timeslice_process.count = gpu_count, timeslice_process.uuids = uuids;
        prepare();
        __atomic_store_n(&started, true, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&start_mutex);
    return 0;
}

/* Wait at the gate. Returns false if no thread is left that could open the gate. */
static bool pass(struct timeslice_gpu *gpu) {
    note_context(gpu);
    while (!enter(gpu)) {
        if (!__atomic_load_n(&timeslice_process.running, __ATOMIC_ACQUIRE)) return false;
        wait_at(gpu);
    }
    return true;
}

void timeslice_before(int number) {
    if (depth++) return;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancelling);
    passed = NOT;
    if (!__atomic_load_n(&started, __ATOMIC_ACQUIRE) || number < 0 || (unsigned)number >= timeslice_process.count)
        return;
    struct timeslice_gpu *gpu = &timeslice_process.gpu[number];
    do
        if (!__atomic_load_n(&timeslice_process.running, __ATOMIC_ACQUIRE) && !run()) {
            if (timeslice_threadless_before(gpu)) passed = BY_ITSELF;
            return;
        }
    while (!pass(gpu));
    passed = BY_GATE;
    uint64_t since = __atomic_load_n(&gpu->idle_since, __ATOMIC_RELAXED);
    if (since && __atomic_compare_exchange_n(&gpu->idle_since, &since, 0, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
        __atomic_add_fetch(&gpu->idle, timeslice_now() - since, __ATOMIC_RELAXED);
}

void timeslice_after(int number) {
    if (depth && --depth) return;
    struct timeslice_gpu *gpu = &timeslice_process.gpu[number];
    if (passed == BY_ITSELF) timeslice_threadless_after(gpu);
    if (passed == BY_GATE) {
        if (__atomic_load_n(&gpu->gate, __ATOMIC_RELAXED) == TIMESLICE_METERED)
            __atomic_store_n(&gpu->last_pass, timeslice_now(), __ATOMIC_RELAXED);
        __atomic_add_fetch(&gpu->passes, TIMESLICE_PASS - 1, __ATOMIC_SEQ_CST);
    }
    passed = NOT;
    pthread_setcancelstate(cancelling, NULL);
}

static void in_child(void) {
    pthread_mutex_init(&start_mutex, NULL);
    depth = 0, passed = NOT;
    started = false;
}

static const struct gputile_fork_handlers handlers = {.order = GPUTILE_FORK_TIMESLICE, .in_child = in_child};
static const struct gputile_fork_handlers *const registered GPUTILE_FORK_HANDLERS = &handlers;
