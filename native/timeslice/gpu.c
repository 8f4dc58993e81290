/* Defines the state of this process's GPUs, and opens and closes their gates. */
#define _GNU_SOURCE
#include "timeslice/gpu.h"

#include <sys/socket.h>
#include <time.h>

#include "base/fork_handlers.h"

struct timeslice_process timeslice_process = {.wake = GPUTILE_GUARDED_FD_NONE, .woken = GPUTILE_GUARDED_FD_NONE};

uint64_t timeslice_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

uint64_t timeslice_quantum(void) { return __atomic_load_n(&timeslice_process.quantum, __ATOMIC_RELAXED); }

void timeslice_wake_keeper(void) {
    if (gputile_guarded_fd_is_ours(&timeslice_process.wake) && send(timeslice_process.wake.fd, "", 1, MSG_NOSIGNAL) < 0)
        return; /* the buffer is full, so the keeper is already awake */
}

void timeslice_set_gate(struct timeslice_gpu *gpu, enum timeslice_gate gate, uint64_t end) {
    pthread_mutex_lock(&gpu->mutex);
    __atomic_store_n(&gpu->end, end, __ATOMIC_RELAXED);
    __atomic_store_n(&gpu->gate, (int)gate, __ATOMIC_SEQ_CST);
    pthread_cond_broadcast(&gpu->changed);
    pthread_mutex_unlock(&gpu->mutex);
}

bool timeslice_drained(struct timeslice_gpu *gpu) {
    uint64_t passes = __atomic_load_n(&gpu->passes, __ATOMIC_SEQ_CST);
    return !TIMESLICE_INSIDE(passes) && TIMESLICE_FINISHED(passes) == __atomic_load_n(&gpu->drained, __ATOMIC_ACQUIRE);
}

static void in_child(void) {
    /* Close the parent's descriptors, so that the arbiter notices the parent's end even while this process lives. */
    gputile_guarded_fd_close(&timeslice_process.wake);
    gputile_guarded_fd_close(&timeslice_process.woken);
    timeslice_process.count = 0; /* threads that the child does not have may hold the locks */
    timeslice_process.ended = timeslice_process.running = timeslice_process.threadless = false;
}

static const struct gputile_fork_handlers handlers = {.order = GPUTILE_FORK_TIMESLICE_GPUS, .in_child = in_child};
static const struct gputile_fork_handlers *const registered GPUTILE_FORK_HANDLERS = &handlers;
