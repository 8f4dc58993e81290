/* Turns without threads: where the process may start none, who submits waits and measures itself, call by call. */
#define _GNU_SOURCE
#include <time.h>

#include "gate.h"
#include "turn_card.h"

#define TRY_AGAIN (1000 * TURN_MS)
#define LONGEST_SLEEP (20 * TURN_MS)

static uint64_t again_at; /* when threads may be had again */
static _Thread_local uint64_t since, paid;

bool turn_threads_missing(void) { return __atomic_load_n(&again_at, __ATOMIC_ACQUIRE) > turn_now(); }

void turn_threads_failed(void) {
    static bool said;
    __atomic_store_n(&again_at, turn_now() + TRY_AGAIN, __ATOMIC_RELEASE);
    if (!__atomic_exchange_n(&said, true, __ATOMIC_RELAXED))
        gputile_say("this process can start no threads: each piece of its GPU work is waited for, and it keeps to its container's "
                    "share of the GPU's time. Raise the limit on processes (ulimit -u, pids.max), or allow threads in its seccomp profile.");
}

void turn_here_in_child(void) { again_at = 0; }

bool turn_here_before(struct turn_card *card) {
    uint64_t now, at;
    if (__atomic_load_n(&card->share, __ATOMIC_RELAXED) >= TURN_WHOLE) return false;
    while (!turn_account_begin(card, turn_quantum(), now = turn_now(), &paid, &at)) {
        uint64_t pause = at - now < LONGEST_SLEEP ? at - now : LONGEST_SLEEP;
        nanosleep(&(struct timespec){.tv_nsec = (long)pause}, NULL);
    }
    since = now;
    return true;
}

void turn_here_after(struct turn_card *card) {
    /* During a capture nobody may wait for a context: a quantum stays charged. */
    if (turn_wait_here()) turn_account_correct(card, turn_now() - since, &paid);
}
