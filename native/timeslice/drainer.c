/* The drainers: wait until the card has done what was submitted, and tell how far it has got.
 *
 * They wait for whole contexts, from threads of their own, and so touch no stream of the application. A context must not
 * be waited for while one of its streams captures a graph: the capture would be lost. So captures are counted, and one
 * that begins waits for the drainer.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <time.h>

#include "base/driver.h"
#include "base/pthread_compat.h"
#include "timeslice/timeslice.h"
#include "timeslice/card.h"

enum { FIRST_WINDOW = 8, MOST_WINDOW = 4096, CAPTURE_MODE_RELAXED = 2, MOST_TRIES = 10000 };
#define REST (TIMESLICE_MS)
#define STACK ((size_t)1 << 20)

static pthread_mutex_t capture_mutex = PTHREAD_MUTEX_INITIALIZER;
static int captures;

void timeslice_count_capture(int change) {
    pthread_mutex_lock(&capture_mutex);
    if (captures + change >= 0) __atomic_store_n(&captures, captures + change, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&capture_mutex);
}

bool timeslice_capturing(void) { return __atomic_load_n(&captures, __ATOMIC_SEQ_CST) > 0; }

void timeslice_drain_in_child(void) {
    pthread_mutex_init(&capture_mutex, NULL);
    captures = 0;
}

/* What a drainer keeps of each context: an event to sleep on, where the driver can record one for a whole context. */
struct place { CUcontext context; CUevent event; };

/* Wait for a context that is current; false if a capture is in the way. */
static bool wait_for(struct place *place) {
    const struct gputile_driver *driver = gputile_driver();
    bool recorded = false;
    pthread_mutex_lock(&capture_mutex);
    if (captures) {
        pthread_mutex_unlock(&capture_mutex);
        return false;
    }
    if (place->event) recorded = driver->cuCtxRecordEvent(place->context, place->event) == CUDA_SUCCESS;
    /* Without the event a capture that begins meanwhile has to wait. */
    if (!recorded) driver->cuCtxSynchronize();
    pthread_mutex_unlock(&capture_mutex);
    if (recorded) driver->cuEventSynchronize(place->event);
    return true;
}

static bool drain_context(struct place *place, CUcontext context) {
    const struct gputile_driver *driver = gputile_driver();
    CUcontext popped;
    bool done;
    if (driver->cuCtxPushCurrent(context) != CUDA_SUCCESS) return true; /* it is gone, and its work with it */
    if (place->context != context) {
        if (place->event) driver->cuEventDestroy(place->event);
        place->context = context, place->event = NULL;
        if (!driver->cuCtxRecordEvent || !driver->cuEventCreate || !driver->cuEventSynchronize || !driver->cuEventDestroy ||
            driver->cuEventCreate(&place->event, CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
            place->event = NULL;
    }
    done = wait_for(place);
    driver->cuCtxPopCurrent(&popped);
    return done;
}

static bool drain_all(struct timeslice_card *card, struct place places[TIMESLICE_MOST_CONTEXTS]) {
    bool done = true;
    for (int i = 0; i < TIMESLICE_MOST_CONTEXTS; i++) {
        if (__atomic_exchange_n(&card->forgotten[i], 0, __ATOMIC_SEQ_CST)) places[i] = (struct place){0};
        CUcontext context = __atomic_load_n(&card->context[i], __ATOMIC_SEQ_CST);
        if (context) done = drain_context(&places[i], context) && done;
    }
    return done;
}

/* How many more submissions the card may be behind with, by how long it took for those before: an eighth of a quantum
 * in the card's queue, and as much that the drainer waits for. Few at first: nobody knows how long one takes. */
static uint64_t adapt(uint64_t window, uint64_t submissions, uint64_t took) {
    uint64_t aim = __atomic_load_n(&timeslice_process.quantum, __ATOMIC_RELAXED) / 8;
    if (took > aim && submissions) {
        uint64_t fits = submissions * aim / took;
        return fits < 1 ? 1 : fits < window ? fits : window;
    }
    return took < aim / 2 && submissions >= window / 2 && window < MOST_WINDOW ? 2 * window : window;
}

static void rest(struct timeslice_card *card) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += REST;
    until.tv_sec += until.tv_nsec / 1000000000, until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&card->changed, &card->mutex, &until);
}

/* All is done: the card is idle from now on, unless a thread submits at this moment. */
static void note_idle(struct timeslice_card *card, uint64_t finished) {
    uint64_t none = 0, now = timeslice_now();
    if (!__atomic_compare_exchange_n(&card->idle_since, &none, now, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) return;
    if (__atomic_load_n(&card->passes, __ATOMIC_SEQ_CST) != finished * TIMESLICE_PASS)
        __atomic_compare_exchange_n(&card->idle_since, &now, 0, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

static bool ended(void) { return __atomic_load_n(&timeslice_process.ended, __ATOMIC_SEQ_CST); }

static void *drainer(void *argument) {
    struct timeslice_card *card = argument;
    struct place places[TIMESLICE_MOST_CONTEXTS];
    uint64_t window = FIRST_WINDOW;
    int relaxed = CAPTURE_MODE_RELAXED; /* what this thread does breaks nobody's capture */
    memset(places, 0, sizeof places);
    if (gputile_driver()->cuThreadExchangeStreamCaptureMode) gputile_driver()->cuThreadExchangeStreamCaptureMode(&relaxed);
    pthread_mutex_lock(&card->mutex);
    while (!ended()) {
        uint64_t passes = __atomic_load_n(&card->passes, __ATOMIC_SEQ_CST), finished = TIMESLICE_FINISHED(passes);
        uint64_t drained = __atomic_load_n(&card->drained, __ATOMIC_RELAXED);
        if (!card->watch) {
            pthread_cond_wait(&card->changed, &card->mutex);
            continue;
        }
        if (__atomic_load_n(&card->ahead_until, __ATOMIC_RELAXED) != finished + window) {
            __atomic_store_n(&card->ahead_until, finished + window, __ATOMIC_RELAXED);
            pthread_cond_broadcast(&card->changed);
        }
        if (finished == drained) {
            if (!TIMESLICE_INSIDE(passes)) note_idle(card, finished);
            rest(card);
            continue;
        }
        card->draining = true;
        pthread_mutex_unlock(&card->mutex);
        uint64_t begin = timeslice_now();
        bool done = drain_all(card, places);
        if (done) {
            window = adapt(window, finished - drained, timeslice_now() - begin);
            __atomic_store_n(&card->drained, finished, __ATOMIC_RELEASE);
            timeslice_wake_keeper();
        }
        pthread_mutex_lock(&card->mutex);
        card->draining = false, card->rounds++;
        if (!done) rest(card);
    }
    pthread_mutex_unlock(&card->mutex);
    return NULL;
}

/* Wait until the drainer has finished the round that it is in, in which it may use a context that was forgotten since. */
static void outlast_round(struct timeslice_card *card) {
    pthread_mutex_lock(&card->mutex);
    for (uint64_t round = card->rounds, tries = 0; card->draining && card->rounds == round && tries < MOST_TRIES; tries++) {
        pthread_mutex_unlock(&card->mutex);
        nanosleep(&(struct timespec){.tv_nsec = TIMESLICE_MS / 5}, NULL);
        pthread_mutex_lock(&card->mutex);
    }
    pthread_mutex_unlock(&card->mutex);
}

void timeslice_forget_context(void *context) {
    for (unsigned i = 0; context && i < timeslice_process.count; i++) {
        struct timeslice_card *card = &timeslice_process.card[i];
        for (int place = 0; place < TIMESLICE_MOST_CONTEXTS; place++) {
            void *known = context;
            bool here = __atomic_compare_exchange_n(&card->context[place], &known, NULL, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
            /* One that is nowhere any more may have had the last place, which another took. */
            if (here || place == TIMESLICE_MOST_CONTEXTS - 1) __atomic_store_n(&card->forgotten[place], 1, __ATOMIC_SEQ_CST);
        }
        outlast_round(card);
    }
}

bool timeslice_wait_here(void) {
    pthread_mutex_lock(&capture_mutex);
    bool may = !captures && gputile_driver()->cuCtxSynchronize;
    if (may) gputile_driver()->cuCtxSynchronize();
    pthread_mutex_unlock(&capture_mutex);
    return may;
}

bool timeslice_thread(void *(*body)(void *), void *argument) {
    pthread_attr_t attributes;
    pthread_t thread;
    sigset_t all, before;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    gputile_pthread_attr_setstacksize(&attributes, STACK);
    sigfillset(&all); /* signals are the application's */
    gputile_pthread_sigmask(SIG_SETMASK, &all, &before);
    bool made = gputile_pthread_create(&thread, &attributes, body, argument) == 0;
    gputile_pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return made;
}

bool timeslice_watch(struct timeslice_card *card, bool watch) {
    pthread_mutex_lock(&card->mutex);
    if (watch && !card->has_drainer) card->has_drainer = timeslice_thread(drainer, card);
    card->watch = watch && card->has_drainer;
    bool follows = card->watch == watch;
    pthread_cond_broadcast(&card->changed);
    pthread_mutex_unlock(&card->mutex);
    return follows;
}

void timeslice_drainers_leave(void) {
    for (int tries = 0; tries < 200; tries++) {
        bool inside = false;
        for (unsigned i = 0; i < timeslice_process.count; i++) {
            struct timeslice_card *card = &timeslice_process.card[i];
            pthread_mutex_lock(&card->mutex);
            inside = inside || card->draining;
            pthread_mutex_unlock(&card->mutex);
        }
        if (!inside) return;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}
