/* Changes the account without a lock, by atomic changes of one word.
 *
 * The word is in the file that the container's processes share. It is the time at which the container's next turn may
 * begin, in nanoseconds of CLOCK_MONOTONIC. A process that begins a turn adds the turn's estimated cost to this time,
 * and corrects the cost when the turn ends. The cost depends on the container's share of the GPU. So all processes
 * together get at most this share, and a process that is killed has already paid for its turn.
 */
#include "timeslice/account.h"

#include "accounting/shared_usage.h"

#define MOST_OWED (10000 * TIMESLICE_MS) /* the limit for a process that was stopped during its turn */

static uint64_t unshared[GPUTILE_MOST_GPUS];

static uint64_t *word_of(const struct timeslice_gpu *gpu) {
    unsigned number = (unsigned)(gpu - timeslice_process.gpu);
    uint64_t *shared = gputile_shared_usage_word(number);
    return shared ? shared : &unshared[number];
}

static uint64_t by_share(const struct timeslice_gpu *gpu, uint64_t spent) {
    return (spent < MOST_OWED ? spent : MOST_OWED) * TIMESLICE_WHOLE / __atomic_load_n(&gpu->share, __ATOMIC_RELAXED);
}

bool timeslice_account_begin(const struct timeslice_gpu *gpu, uint64_t length, uint64_t now, uint64_t *paid,
                             uint64_t *at) {
    uint64_t *word = word_of(gpu), next = __atomic_load_n(word, __ATOMIC_RELAXED);
    *paid = by_share(gpu, length);
    do {
        *at = next;
        if (next > now) return false;
    } while (!__atomic_compare_exchange_n(word, &next, now + *paid, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED));
    return true;
}

void timeslice_account_correct(const struct timeslice_gpu *gpu, uint64_t spent, uint64_t *paid) {
    uint64_t due = by_share(gpu, spent);
    __atomic_fetch_add(word_of(gpu), due - *paid, __ATOMIC_ACQ_REL); /* modulo 2^64, if `due` is less than `paid` */
    *paid = due;
}

void timeslice_account_note(const struct timeslice_gpu *gpu, uint64_t spent, uint64_t now) {
    uint64_t *word = word_of(gpu), next = __atomic_load_n(word, __ATOMIC_RELAXED),
             most = now + by_share(gpu, timeslice_quantum()), then;
    do {
        if (next >= most) return;
        then = (next > now ? next : now) + by_share(gpu, spent);
        if (then > most) then = most;
    } while (!__atomic_compare_exchange_n(word, &next, then, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED));
}
