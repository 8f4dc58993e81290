/* Waits for whole contexts in separate threads, so that no stream of the application is affected. */
#define _GNU_SOURCE
#include "timeslice/drainer.h"

#include <string.h>
#include <time.h>

#include "base/driver.h"
#include "timeslice/captures.h"
#include "timeslice/threads.h"

enum { FIRST_WINDOW = 8, MOST_WINDOW = 4096, CAPTURE_MODE_RELAXED = 2, MOST_TRIES = 10000 };
#define REST ((long)TIMESLICE_MS)

/* The event on which a drainer waits for a context, if the driver can record an event for a whole context. */
struct place {
    CUcontext context;
    CUevent event;
};

static bool drain_context(struct place *place, CUcontext context) {
    const struct gputile_driver *driver = gputile_driver();
    CUcontext popped;
    bool done;
    if (driver->cuCtxPushCurrent(context) != CUDA_SUCCESS) return true; /* context and work were destroyed */
    if (place->context != context) {
        if (place->event) driver->cuEventDestroy(place->event);
        place->context = context, place->event = NULL;
        if (!driver->cuCtxRecordEvent || !driver->cuEventCreate || !driver->cuEventSynchronize ||
            !driver->cuEventDestroy ||
            driver->cuEventCreate(&place->event, CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
            place->event = NULL;
    }
    done = timeslice_wait_for(place->context, place->event);
    driver->cuCtxPopCurrent(&popped);
    return done;
}

static bool drain_all(struct timeslice_gpu *gpu, struct place places[TIMESLICE_MOST_CONTEXTS]) {
    bool done = true;
    for (int i = 0; i < TIMESLICE_MOST_CONTEXTS; i++) {
        if (__atomic_exchange_n(&gpu->forgotten[i], 0, __ATOMIC_SEQ_CST)) places[i] = (struct place){0};
        CUcontext context = __atomic_load_n(&gpu->context[i], __ATOMIC_SEQ_CST);
        if (context) done = drain_context(&places[i], context) && done;
    }
    return done;
}

/* The number of submissions that may be unfinished, estimated from the duration of earlier submissions. They last for
 * an eighth of a quantum in the GPU's queue, and for an eighth while the drainer waits. The number is small at first,
 * because the duration is not known yet. */
static uint64_t adapt(uint64_t window, uint64_t submissions, uint64_t took) {
    uint64_t aim = __atomic_load_n(&timeslice_process.quantum, __ATOMIC_RELAXED) / 8;
    if (took > aim && submissions) {
        uint64_t fits = submissions * aim / took;
        return fits < 1 ? 1 : fits < window ? fits : window;
    }
    return took < aim / 2 && submissions >= window / 2 && window < MOST_WINDOW ? 2 * window : window;
}

static void rest(struct timeslice_gpu *gpu) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += REST;
    until.tv_sec += until.tv_nsec / 1000000000, until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&gpu->changed, &gpu->mutex, &until);
}

/* All work is finished. The GPU is idle from now on, unless a thread is submitting work. */
static void note_idle(struct timeslice_gpu *gpu, uint64_t finished) {
    uint64_t none = 0, now = timeslice_now();
    if (!__atomic_compare_exchange_n(&gpu->idle_since, &none, now, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) return;
    if (__atomic_load_n(&gpu->passes, __ATOMIC_SEQ_CST) != finished * TIMESLICE_PASS)
        __atomic_compare_exchange_n(&gpu->idle_since, &now, 0, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

static bool ended(void) { return __atomic_load_n(&timeslice_process.ended, __ATOMIC_SEQ_CST); }

static void *drainer(void *argument) {
    struct timeslice_gpu *gpu = argument;
    struct place places[TIMESLICE_MOST_CONTEXTS];
    uint64_t window = FIRST_WINDOW;
    int relaxed = CAPTURE_MODE_RELAXED; /* so that calls of this thread do not invalidate captures */
    memset(places, 0, sizeof places);
    if (gputile_driver()->cuThreadExchangeStreamCaptureMode)
        gputile_driver()->cuThreadExchangeStreamCaptureMode(&relaxed);
    pthread_mutex_lock(&gpu->mutex);
    while (!ended()) {
        uint64_t passes = __atomic_load_n(&gpu->passes, __ATOMIC_SEQ_CST), finished = TIMESLICE_FINISHED(passes);
        uint64_t drained = __atomic_load_n(&gpu->drained, __ATOMIC_RELAXED);
        if (!gpu->watch) {
            pthread_cond_wait(&gpu->changed, &gpu->mutex);
            continue;
        }
        if (__atomic_load_n(&gpu->ahead_until, __ATOMIC_RELAXED) != finished + window) {
            __atomic_store_n(&gpu->ahead_until, finished + window, __ATOMIC_RELAXED);
            pthread_cond_broadcast(&gpu->changed);
        }
        if (finished == drained) {
            if (!TIMESLICE_INSIDE(passes)) note_idle(gpu, finished);
            rest(gpu);
            continue;
        }
        gpu->draining = true;
        pthread_mutex_unlock(&gpu->mutex);
        uint64_t begin = timeslice_now();
        bool done = drain_all(gpu, places);
        if (done) {
            window = adapt(window, finished - drained, timeslice_now() - begin);
            __atomic_store_n(&gpu->drained, finished, __ATOMIC_RELEASE);
            timeslice_wake_keeper();
        }
        pthread_mutex_lock(&gpu->mutex);
        gpu->draining = false, gpu->rounds++;
        if (!done) rest(gpu);
    }
    pthread_mutex_unlock(&gpu->mutex);
    return NULL;
}

/* Wait until the drainer has finished its current round. In this round it may still use a removed context. */
static void outlast_round(struct timeslice_gpu *gpu) {
    pthread_mutex_lock(&gpu->mutex);
    for (uint64_t round = gpu->rounds, tries = 0; gpu->draining && gpu->rounds == round && tries < MOST_TRIES;
         tries++) {
        pthread_mutex_unlock(&gpu->mutex);
        nanosleep(&(struct timespec){.tv_nsec = (long)TIMESLICE_MS / 5}, NULL);
        pthread_mutex_lock(&gpu->mutex);
    }
    pthread_mutex_unlock(&gpu->mutex);
}

void timeslice_forget_context(void *context) {
    for (unsigned i = 0; context && i < timeslice_process.count; i++) {
        struct timeslice_gpu *gpu = &timeslice_process.gpu[i];
        for (int place = 0; place < TIMESLICE_MOST_CONTEXTS; place++) {
            void *known = context;
            bool here = __atomic_compare_exchange_n(&gpu->context[place], &known, NULL, false, __ATOMIC_SEQ_CST,
                                                    __ATOMIC_SEQ_CST);
            /* A context without a slot may have had the last slot, which another context uses now. */
            if (here || place == TIMESLICE_MOST_CONTEXTS - 1)
                __atomic_store_n(&gpu->forgotten[place], 1, __ATOMIC_SEQ_CST);
        }
        outlast_round(gpu);
    }
}

bool timeslice_watch(struct timeslice_gpu *gpu, bool watch) {
    pthread_mutex_lock(&gpu->mutex);
    if (watch && !gpu->has_drainer) gpu->has_drainer = timeslice_start_thread(drainer, gpu);
    gpu->watch = watch && gpu->has_drainer;
    bool follows = gpu->watch == watch;
    pthread_cond_broadcast(&gpu->changed);
    pthread_mutex_unlock(&gpu->mutex);
    return follows;
}

void timeslice_drainers_leave(void) {
    for (int tries = 0; tries < 200; tries++) {
        bool inside = false;
        for (unsigned i = 0; i < timeslice_process.count; i++) {
            struct timeslice_gpu *gpu = &timeslice_process.gpu[i];
            pthread_mutex_lock(&gpu->mutex);
            inside = inside || gpu->draining;
            pthread_mutex_unlock(&gpu->mutex);
        }
        if (!inside) return;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}
