/* The gate before the driver's submitting calls: open while it is this container's turn on the card. */
#define _GNU_SOURCE
#include "turn.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "driver.h"
#include "late.h"
#include "turn_card.h"

enum { ONE_WAIT_MS = 100 };

struct turn_process turn_process = {.wake = GPUTILE_OWNS_NOTHING, .woken = GPUTILE_OWNS_NOTHING};
static pthread_mutex_t start_mutex = PTHREAD_MUTEX_INITIALIZER;
static bool started;
/* Calls of this thread that are inside each other: only the outermost passes the gate. */
static _Thread_local int depth;
static _Thread_local enum { NOT, BY_GATE, BY_ITSELF } passed;
static _Thread_local int cancelling; /* a thread that is cancelled here would never be counted as finished */

uint64_t turn_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

void turn_wake_keeper(void) {
    if (gputile_owns(&turn_process.wake) && send(turn_process.wake.fd, "", 1, MSG_NOSIGNAL) < 0) return; /* full: it is awake */
}

void turn_set_gate(struct turn_card *card, enum turn_gate gate, uint64_t end) {
    pthread_mutex_lock(&card->mutex);
    __atomic_store_n(&card->end, end, __ATOMIC_RELAXED);
    __atomic_store_n(&card->gate, gate, __ATOMIC_SEQ_CST);
    pthread_cond_broadcast(&card->changed);
    pthread_mutex_unlock(&card->mutex);
}

bool turn_drained(struct turn_card *card) {
    uint64_t passes = __atomic_load_n(&card->passes, __ATOMIC_SEQ_CST);
    return !TURN_INSIDE(passes) && TURN_FINISHED(passes) == __atomic_load_n(&card->drained, __ATOMIC_ACQUIRE);
}

/* Whether a thread that is counted in `passes` may submit now. */
static bool open_to(struct turn_card *card, uint64_t passes) {
    int gate = __atomic_load_n(&card->gate, __ATOMIC_SEQ_CST);
    if (gate != TURN_METERED) return gate == TURN_WIDE;
    if (turn_now() >= __atomic_load_n(&card->end, __ATOMIC_RELAXED)) return false;
    return TURN_FINISHED(passes) + TURN_INSIDE(passes) <= __atomic_load_n(&card->ahead_until, __ATOMIC_RELAXED);
}

static bool enter(struct turn_card *card) {
    uint64_t passes = __atomic_add_fetch(&card->passes, 1, __ATOMIC_SEQ_CST);
    if (open_to(card, passes)) return true;
    __atomic_sub_fetch(&card->passes, 1, __ATOMIC_SEQ_CST);
    return false;
}

static void wait_at(struct turn_card *card) {
    struct timespec until;
    pthread_mutex_lock(&card->mutex);
    __atomic_add_fetch(&card->waiting, 1, __ATOMIC_SEQ_CST);
    turn_wake_keeper();
    pthread_cond_broadcast(&card->changed); /* a drainer at rest starts again */
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += ONE_WAIT_MS * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000, until.tv_nsec %= 1000000000;
    if (!open_to(card, __atomic_load_n(&card->passes, __ATOMIC_SEQ_CST) + 1))
        pthread_cond_timedwait(&card->changed, &card->mutex, &until);
    __atomic_sub_fetch(&card->waiting, 1, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&card->mutex);
}

/* Note the current context, so that the drainer waits for its work. */
static void note_context(struct turn_card *card) {
    CUcontext context = NULL;
    if (!gputile_driver()->cuCtxGetCurrent || gputile_driver()->cuCtxGetCurrent(&context) || !context) return;
    for (int i = 0; i < TURN_MOST_CONTEXTS; i++) {
        void *known = __atomic_load_n(&card->context[i], __ATOMIC_ACQUIRE);
        if (known == context) return;
        if (!known && __atomic_compare_exchange_n(&card->context[i], &known, context, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) return;
        if (known == context) return;
    }
    __atomic_store_n(&card->context[TURN_MOST_CONTEXTS - 1], context, __ATOMIC_RELEASE);
}

static void leave_at_exit(void) {
    __atomic_store_n(&turn_process.ended, true, __ATOMIC_SEQ_CST);
    for (unsigned i = 0; i < turn_process.count; i++) turn_set_gate(&turn_process.card[i], TURN_WIDE, 0);
    turn_drainers_leave();
}

static bool run(void) {
    static bool registered;
    if (turn_threads_missing()) return false;
    pthread_mutex_lock(&start_mutex);
    if (!turn_process.running) {
        /* Sockets: should the number become a file of the program's between look and use, nothing gets into it. */
        int ends[2] = {-1, -1};
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) ends[0] = ends[1] = -1;
        gputile_disown(&turn_process.woken), gputile_disown(&turn_process.wake); /* of a start that failed */
        gputile_own(&turn_process.woken, ends[0]), gputile_own(&turn_process.wake, ends[1]);
        /* Registered late, so that it runs before the driver's own end. */
        if (!registered) registered = atexit(leave_at_exit) == 0;
        /* First, for the keeper may end at once. Without sockets it looks every now and then. */
        __atomic_store_n(&turn_process.running, true, __ATOMIC_SEQ_CST);
        if (!turn_keeper_start()) {
            turn_threads_failed();
            __atomic_store_n(&turn_process.running, false, __ATOMIC_SEQ_CST);
        }
    }
    bool runs = turn_process.running;
    pthread_mutex_unlock(&start_mutex);
    return runs;
}

static void prepare(void) {
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    gputile_pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    for (unsigned i = 0; i < GPUTILE_MOST_CARDS; i++) {
        struct turn_card *card = &turn_process.card[i];
        memset(card, 0, sizeof *card);
        pthread_mutex_init(&card->mutex, NULL);
        pthread_cond_init(&card->changed, &monotonic);
    }
    pthread_condattr_destroy(&monotonic);
}

void gputile_turn_in_child(void) {
    /* The descriptors are the parent's: its end must be seen even while this process lives. */
    gputile_disown(&turn_process.wake);
    gputile_disown(&turn_process.woken);
    turn_process.count = 0; /* the cards' locks may be those of threads that are not here */
    turn_process.ended = false;
    pthread_mutex_init(&start_mutex, NULL);
    turn_keeper_in_child();
    turn_drain_in_child();
    turn_here_in_child();
    depth = 0, passed = NOT;
    started = turn_process.running = turn_process.threadless = false;
}

int gputile_turn_start(const char *socket_path, unsigned card_count, const char *const *uuids) {
    if (!socket_path || strlen(socket_path) >= sizeof turn_process.socket_path || card_count > GPUTILE_MOST_CARDS) return -1;
    if (!*socket_path) return 0;
    pthread_mutex_lock(&start_mutex);
    if (!started) {
        strcpy(turn_process.socket_path, socket_path);
        turn_process.count = card_count, turn_process.uuids = uuids;
        prepare();
        __atomic_store_n(&started, true, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&start_mutex);
    return 0;
}

/* Wait at the gate; false if there is nobody any more who opens it. */
static bool pass(struct turn_card *card) {
    note_context(card);
    while (!enter(card)) {
        if (!__atomic_load_n(&turn_process.running, __ATOMIC_ACQUIRE)) return false;
        wait_at(card);
    }
    return true;
}

void gputile_turn_before(int number, void *stream) {
    if (depth++) return;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancelling);
    passed = NOT;
    if (!__atomic_load_n(&started, __ATOMIC_ACQUIRE) || number < 0 || (unsigned)number >= turn_process.count) return;
    (void)stream;
    struct turn_card *card = &turn_process.card[number];
    do
        if (!__atomic_load_n(&turn_process.running, __ATOMIC_ACQUIRE) && !run()) {
            if (turn_here_before(card)) passed = BY_ITSELF;
            return;
        }
    while (!pass(card));
    passed = BY_GATE;
    uint64_t since = __atomic_load_n(&card->idle_since, __ATOMIC_RELAXED);
    if (since && __atomic_compare_exchange_n(&card->idle_since, &since, 0, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
        __atomic_add_fetch(&card->idle, turn_now() - since, __ATOMIC_RELAXED);
}

void gputile_turn_after(int number, void *stream) {
    (void)stream;
    if (depth && --depth) return;
    struct turn_card *card = &turn_process.card[number];
    if (passed == BY_ITSELF) turn_here_after(card);
    if (passed == BY_GATE) {
        if (__atomic_load_n(&card->gate, __ATOMIC_RELAXED) == TURN_METERED)
            __atomic_store_n(&card->last_pass, turn_now(), __ATOMIC_RELAXED);
        __atomic_add_fetch(&card->passes, TURN_PASS - 1, __ATOMIC_SEQ_CST);
    }
    passed = NOT;
    pthread_setcancelstate(cancelling, NULL);
}
