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

#include "driver.h"
#include "late.h"
#include "turn.h"
#include "turn_card.h"

enum { FIRST_WINDOW = 8, MOST_WINDOW = 4096, CAPTURE_MODE_RELAXED = 2, MOST_TRIES = 10000 };
#define REST (TURN_MS)
#define STACK ((size_t)1 << 20)

static pthread_mutex_t capture_mutex = PTHREAD_MUTEX_INITIALIZER;
static int captures;

void gputile_turn_capture(int change) {
    pthread_mutex_lock(&capture_mutex);
    if (captures + change >= 0) __atomic_store_n(&captures, captures + change, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&capture_mutex);
}

bool turn_capturing(void) { return __atomic_load_n(&captures, __ATOMIC_SEQ_CST) > 0; }

void turn_drain_in_child(void) {
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

static bool drain_all(struct turn_card *card, struct place places[TURN_MOST_CONTEXTS]) {
    bool done = true;
    for (int i = 0; i < TURN_MOST_CONTEXTS; i++) {
        if (__atomic_exchange_n(&card->forgotten[i], 0, __ATOMIC_SEQ_CST)) places[i] = (struct place){0};
        CUcontext context = __atomic_load_n(&card->context[i], __ATOMIC_SEQ_CST);
        if (context) done = drain_context(&places[i], context) && done;
    }
    return done;
}

/* How many more submissions the card may be behind with, by how long it took for those before: an eighth of a quantum
 * in the card's queue, and as much that the drainer waits for. Few at first: nobody knows how long one takes. */
static uint64_t adapt(uint64_t window, uint64_t submissions, uint64_t took) {
    uint64_t aim = __atomic_load_n(&turn_process.quantum, __ATOMIC_RELAXED) / 8;
    if (took > aim && submissions) {
        uint64_t fits = submissions * aim / took;
        return fits < 1 ? 1 : fits < window ? fits : window;
    }
    return took < aim / 2 && submissions >= window / 2 && window < MOST_WINDOW ? 2 * window : window;
}

static void rest(struct turn_card *card) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += REST;
    until.tv_sec += until.tv_nsec / 1000000000, until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&card->changed, &card->mutex, &until);
}

/* All is done: the card is idle from now on, unless a thread submits at this moment. */
static void note_idle(struct turn_card *card, uint64_t finished) {
    uint64_t none = 0, now = turn_now();
    if (!__atomic_compare_exchange_n(&card->idle_since, &none, now, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) return;
    if (__atomic_load_n(&card->passes, __ATOMIC_SEQ_CST) != finished * TURN_PASS)
        __atomic_compare_exchange_n(&card->idle_since, &now, 0, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

static bool ended(void) { return __atomic_load_n(&turn_process.ended, __ATOMIC_SEQ_CST); }

static void *drainer(void *argument) {
    struct turn_card *card = argument;
    struct place places[TURN_MOST_CONTEXTS];
    uint64_t window = FIRST_WINDOW;
    int relaxed = CAPTURE_MODE_RELAXED; /* what this thread does breaks nobody's capture */
    memset(places, 0, sizeof places);
    if (gputile_driver()->cuThreadExchangeStreamCaptureMode) gputile_driver()->cuThreadExchangeStreamCaptureMode(&relaxed);
    pthread_mutex_lock(&card->mutex);
    while (!ended()) {
        uint64_t passes = __atomic_load_n(&card->passes, __ATOMIC_SEQ_CST), finished = TURN_FINISHED(passes);
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
            if (!TURN_INSIDE(passes)) note_idle(card, finished);
            rest(card);
            continue;
        }
        card->draining = true;
        pthread_mutex_unlock(&card->mutex);
        uint64_t begin = turn_now();
        bool done = drain_all(card, places);
        if (done) {
            window = adapt(window, finished - drained, turn_now() - begin);
            __atomic_store_n(&card->drained, finished, __ATOMIC_RELEASE);
            turn_wake_keeper();
        }
        pthread_mutex_lock(&card->mutex);
        card->draining = false, card->rounds++;
        if (!done) rest(card);
    }
    pthread_mutex_unlock(&card->mutex);
    return NULL;
}

/* Wait until the drainer has finished the round that it is in, in which it may use a context that was forgotten since. */
static void outlast_round(struct turn_card *card) {
    pthread_mutex_lock(&card->mutex);
    for (uint64_t round = card->rounds, tries = 0; card->draining && card->rounds == round && tries < MOST_TRIES; tries++) {
        pthread_mutex_unlock(&card->mutex);
        nanosleep(&(struct timespec){.tv_nsec = TURN_MS / 5}, NULL);
        pthread_mutex_lock(&card->mutex);
    }
    pthread_mutex_unlock(&card->mutex);
}

void gputile_turn_forget(void *context) {
    for (unsigned i = 0; context && i < turn_process.count; i++) {
        struct turn_card *card = &turn_process.card[i];
        for (int place = 0; place < TURN_MOST_CONTEXTS; place++) {
            void *known = context;
            bool here = __atomic_compare_exchange_n(&card->context[place], &known, NULL, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
            /* One that is nowhere any more may have had the last place, which another took. */
            if (here || place == TURN_MOST_CONTEXTS - 1) __atomic_store_n(&card->forgotten[place], 1, __ATOMIC_SEQ_CST);
        }
        outlast_round(card);
    }
}

bool turn_wait_here(void) {
    pthread_mutex_lock(&capture_mutex);
    bool may = !captures && gputile_driver()->cuCtxSynchronize;
    if (may) gputile_driver()->cuCtxSynchronize();
    pthread_mutex_unlock(&capture_mutex);
    return may;
}

bool turn_thread(void *(*body)(void *), void *argument) {
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

bool turn_watch(struct turn_card *card, bool watch) {
    pthread_mutex_lock(&card->mutex);
    if (watch && !card->has_drainer) card->has_drainer = turn_thread(drainer, card);
    card->watch = watch && card->has_drainer;
    bool follows = card->watch == watch;
    pthread_cond_broadcast(&card->changed);
    pthread_mutex_unlock(&card->mutex);
    return follows;
}

void turn_drainers_leave(void) {
    for (int tries = 0; tries < 200; tries++) {
        bool inside = false;
        for (unsigned i = 0; i < turn_process.count; i++) {
            struct turn_card *card = &turn_process.card[i];
            pthread_mutex_lock(&card->mutex);
            inside = inside || card->draining;
            pthread_mutex_unlock(&card->mutex);
        }
        if (!inside) return;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}
