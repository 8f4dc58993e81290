/* Waits for the container's account before a submission, and after it for the end of the submitted work. */
#define _GNU_SOURCE
#include "timeslice/threadless.h"

#include <time.h>

#include "base/fork_handlers.h"
#include "base/log.h"
#include "timeslice/account.h"
#include "timeslice/captures.h"

#define TRY_AGAIN     (1000 * TIMESLICE_MS)
#define LONGEST_SLEEP (20 * TIMESLICE_MS)

static uint64_t again_at; /* when to try to start threads again */
static _Thread_local uint64_t since, paid;

bool timeslice_threads_missing(void) { return __atomic_load_n(&again_at, __ATOMIC_ACQUIRE) > timeslice_now(); }

void timeslice_threads_failed(void) {
    static bool said;
    __atomic_store_n(&again_at, timeslice_now() + TRY_AGAIN, __ATOMIC_RELEASE);
    if (!__atomic_exchange_n(&said, true, __ATOMIC_RELAXED))
        gputile_log(
            "this process can start no threads, so it waits for each piece of its GPU work to keep to its container's "
            "share of the GPU's time. Raise the limit on processes (ulimit -u, pids.max), or allow threads in "
            "its seccomp profile.");
}

bool timeslice_threadless_before(struct timeslice_gpu *gpu) {
    uint64_t now, at;
    if (__atomic_load_n(&gpu->share, __ATOMIC_RELAXED) >= TIMESLICE_WHOLE) return false;
    while (!timeslice_account_begin(gpu, timeslice_quantum(), now = timeslice_now(), &paid, &at)) {
        uint64_t pause = at - now < LONGEST_SLEEP ? at - now : LONGEST_SLEEP;
        nanosleep(&(struct timespec){.tv_nsec = (long)pause}, NULL);
    }
    since = now;
    return true;
}

void timeslice_threadless_after(struct timeslice_gpu *gpu) {
    /* During a capture no thread may wait for a context, so the charge stays a whole quantum. */
    if (timeslice_wait_for_current()) timeslice_account_correct(gpu, timeslice_now() - since, &paid);
}

static void in_child(void) { again_at = 0; }

static const struct gputile_fork_handlers handlers = {.order = GPUTILE_FORK_THREADLESS, .in_child = in_child};
static const struct gputile_fork_handlers *const registered GPUTILE_FORK_HANDLERS = &handlers;
