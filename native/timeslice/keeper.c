/* Decides what is due with each card, with the arbiter and without one, and makes no driver calls. */
#define _GNU_SOURCE
#include "timeslice/keeper.h"

#include <poll.h>
#include <sys/socket.h>
#include <time.h>

#include "base/fork_handlers.h"
#include "timeslice/account.h"
#include "timeslice/arbiter_link.h"
#include "timeslice/captures.h"
#include "timeslice/card.h"
#include "timeslice/drainer.h"
#include "timeslice/share_file.h"
#include "timeslice/threadless.h"
#include "timeslice/threads.h"

#define CONNECT_EVERY    (250 * TIMESLICE_MS)
#define ANSWER_WITHIN    (1000 * TIMESLICE_MS) /* an arbiter that says nothing for so long is gone */
#define ASK_AGAIN        (250 * TIMESLICE_MS)
#define GIVE_BACK_IDLE   (1 * TIMESLICE_MS)
#define LOOK_EVERY       (2 * TIMESLICE_MS) /* where the program has closed what wakes the keeper */
#define GIVE_UP_DRAINING (2000 * TIMESLICE_MS)
#define NEVER            UINT64_MAX

static struct arbiter_link arbiter = {.socket = GPUTILE_GUARDED_FD_NONE};
static uint64_t connect_at;
static bool alone; /* there was no arbiter when one was looked for last */

static uint64_t share_of(const struct timeslice_card *card) { return __atomic_load_n(&card->share, __ATOMIC_RELAXED); }
static unsigned number_of(const struct timeslice_card *card) { return (unsigned)(card - timeslice_process.card); }
static bool wanted(struct timeslice_card *card) { return __atomic_load_n(&card->waiting, __ATOMIC_SEQ_CST) > 0; }

static uint64_t idle_for(struct timeslice_card *card, uint64_t now) {
    uint64_t since = __atomic_load_n(&card->idle_since, __ATOMIC_ACQUIRE);
    return since && since < now ? now - since : 0;
}

/* -- turns */

static void begin(struct timeslice_card *card, uint64_t length, uint64_t now) {
    card->state = TIMESLICE_HELD, card->since = now;
    __atomic_store_n(&card->idle, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&card->idle_since, length ? now : 0, __ATOMIC_RELEASE);
    if (!timeslice_watch(card, length != 0)) timeslice_process.threadless = true;
    timeslice_set_gate(card, length ? TIMESLICE_METERED : TIMESLICE_WIDE, now + length);
}

/* A turn without end gets one, or one with an end another. */
static void limit(struct timeslice_card *card, uint64_t end) {
    if (!timeslice_watch(card, true)) timeslice_process.threadless = true;
    timeslice_set_gate(card, TIMESLICE_METERED, end);
}

static void shut(struct timeslice_card *card, uint64_t now) {
    timeslice_set_gate(card, TIMESLICE_SHUT, 0);
    card->state = TIMESLICE_ENDING, card->due = card->ending_since = now;
}

/* The arbiter knows that this card is wanted, and has to say something before long. */
static uint64_t ask(struct timeslice_card *card, uint64_t now) {
    arbiter.heard = now;
    card->state = TIMESLICE_ASKED;
    return card->due = now + ASK_AGAIN;
}

static void finish(struct timeslice_card *card, uint64_t now) {
    uint64_t spent = now - card->since, idle = __atomic_load_n(&card->idle, __ATOMIC_RELAXED) + idle_for(card, now);
    bool again = wanted(card);
    spent -= idle < spent ? idle : spent;
    timeslice_watch(card, false);
    card->state = TIMESLICE_NONE;
    if (!card->local) {
        timeslice_account_note(card, spent, now);
        arbiter_link_send(&arbiter, ARBITER_DONE, number_of(card), card->number, spent, again);
        if (again) ask(card, now);
        return;
    }
    card->local = false;
    if (card->paid) timeslice_account_correct(card, spent, &card->paid);
    card->paid = 0;
}

/* Without an arbiter: a turn when the container's account allows one. */
static void begin_alone(struct timeslice_card *card, uint64_t now) {
    uint64_t at, length = share_of(card) < TIMESLICE_WHOLE ? timeslice_quantum() : 0;
    if (length && !timeslice_account_begin(card, length, now, &card->paid, &at)) {
        card->state = TIMESLICE_PAUSE, card->due = at;
        return;
    }
    card->local = true;
    begin(card, length, now);
}

/* A turn that lasts longer than it was taken to is paid for as it goes. */
static void pay_on(struct timeslice_card *card, uint64_t now) {
    uint64_t spent = now - card->since + timeslice_quantum() / 2, before = card->paid;
    if (!card->local || !before) return;
    if (spent * TIMESLICE_WHOLE / share_of(card) > before) timeslice_account_correct(card, spent, &card->paid);
}

static bool is_done(struct timeslice_card *card, uint64_t now) {
    if (timeslice_drained(card) || now - card->ending_since >= GIVE_UP_DRAINING) return true;
    /* During a capture nobody can tell; what was submitted before is no more than a part of a quantum. */
    return timeslice_capturing() && now - card->ending_since >= timeslice_quantum() / 4;
}

/* Do what is due with a card; return when to look again. */
static uint64_t step(struct timeslice_card *card, uint64_t now) {
    uint64_t end;
    switch (card->state) {
    case TIMESLICE_PAUSE:
        if (now < card->due && !arbiter.agreed) return card->due;
        card->state = TIMESLICE_NONE;
        return now;
    case TIMESLICE_NONE:
        if (!wanted(card) || (!alone && !arbiter.agreed)) return NEVER;
        if (arbiter.agreed) {
            arbiter_link_send(&arbiter, ARBITER_WANT, number_of(card), 0, 0, 0);
            return ask(card, now);
        }
        begin_alone(card, now);
        return now;
    case TIMESLICE_ASKED:
        if (now < card->due) return card->due;
        arbiter_link_send(&arbiter, ARBITER_WANT, number_of(card), 0, 0, 0);
        return card->due = now + ASK_AGAIN;
    case TIMESLICE_HELD:
        if (__atomic_load_n(&card->gate, __ATOMIC_RELAXED) == TIMESLICE_WIDE) return NEVER;
        end = __atomic_load_n(&card->end, __ATOMIC_RELAXED);
        if (now < end && (wanted(card) || idle_for(card, now) < GIVE_BACK_IDLE))
            return now + GIVE_BACK_IDLE < end ? now + GIVE_BACK_IDLE : end;
        shut(card, now);
        return now;
    case TIMESLICE_ENDING:
        if (is_done(card, now)) return finish(card, now), now;
        if (now < card->due) return card->due;
        pay_on(card, now);
        if (!card->local) arbiter_link_send(&arbiter, ARBITER_BUSY, number_of(card), card->number, 0, 0);
        return card->due = now + timeslice_quantum() / 2;
    }
    return NEVER;
}

/* -- the arbiter */

static void read_shares(void) {
    uint64_t shares[GPUTILE_MOST_CARDS], found;
    timeslice_share_read(timeslice_process.socket_path, timeslice_process.count, timeslice_process.uuids, shares,
                         &found);
    for (unsigned i = 0; i < timeslice_process.count; i++)
        __atomic_store_n(&timeslice_process.card[i].share, shares[i], __ATOMIC_RELAXED);
    __atomic_store_n(&timeslice_process.quantum, found, __ATOMIC_RELAXED);
}

/* There is an arbiter, or none any more: turns that were begun under the other rule end soon. */
static void change_rule(uint64_t now) {
    for (unsigned i = 0; i < timeslice_process.count; i++) {
        struct timeslice_card *card = &timeslice_process.card[i];
        bool wide = __atomic_load_n(&card->gate, __ATOMIC_RELAXED) == TIMESLICE_WIDE;
        if (card->state == TIMESLICE_ASKED) card->state = TIMESLICE_NONE;
        if (card->state == TIMESLICE_HELD || card->state == TIMESLICE_ENDING) {
            /* What was had before is settled with the other one: a turn without end may have lasted for hours. */
            if (!card->local) card->since = now, __atomic_store_n(&card->idle, 0, __ATOMIC_RELAXED);
            card->local = true;
        }
        if (card->state == TIMESLICE_HELD && wide && (arbiter.agreed || share_of(card) < TIMESLICE_WHOLE))
            limit(card, now + (arbiter.agreed ? 0 : timeslice_quantum()));
    }
}

static void hang_up(uint64_t now) {
    arbiter_link_close(&arbiter);
    alone = true;
    connect_at = now + CONNECT_EVERY;
    read_shares();
    change_rule(now);
}

static void take(const struct arbiter_message *message, uint64_t now) {
    struct timeslice_card *card =
        message->card < timeslice_process.count ? &timeslice_process.card[message->card] : NULL;
    if (message->kind == ARBITER_WELCOME && !arbiter.agreed) {
        if (message->a != 1) return hang_up(now);
        arbiter.agreed = true, alone = false;
        if (message->b) __atomic_store_n(&timeslice_process.quantum, message->b, __ATOMIC_RELAXED);
        for (unsigned i = 0; i < timeslice_process.count; i++)
            arbiter_link_card(&arbiter, i, timeslice_process.uuids[i]);
        change_rule(now);
    } else if (message->kind == ARBITER_TURN && card && card->state == TIMESLICE_ASKED) {
        card->number = message->turn, card->local = false;
        begin(card, message->a, now);
    } else if (message->kind == ARBITER_LIMIT && card && card->state == TIMESLICE_HELD && !card->local &&
               card->number == message->turn) {
        limit(card, now + message->a);
    } else if (!arbiter.agreed) {
        hang_up(now);
    }
}

static void attend(uint64_t now) {
    struct arbiter_message message;
    bool asked = false;
    if (arbiter.socket.fd < 0 && now >= connect_at) {
        if (arbiter_link_open(&arbiter, timeslice_process.socket_path)) return;
        hang_up(now);
    }
    bool had = arbiter.socket.fd >= 0;
    while (arbiter_link_receive(&arbiter, &message)) take(&message, now);
    for (unsigned i = 0; i < timeslice_process.count; i++)
        asked = asked || timeslice_process.card[i].state == TIMESLICE_ASKED;
    if (arbiter.socket.fd >= 0 && (asked || !arbiter.agreed) && now > arbiter.heard + ANSWER_WITHIN)
        arbiter_link_close(&arbiter);
    if (had && arbiter.socket.fd < 0) hang_up(now);
}

/* Without a drainer nobody can tell what a card has done: those who submit have to wait themselves (threadless.h). */
static void end_without_drainer(void) {
    arbiter_link_close(&arbiter);
    timeslice_threads_failed();
    for (unsigned i = 0; i < timeslice_process.count; i++) {
        struct timeslice_card *card = &timeslice_process.card[i];
        timeslice_watch(card, false);
        card->state = TIMESLICE_NONE, card->local = false, card->paid = 0;
        timeslice_set_gate(card, TIMESLICE_SHUT, 0);
    }
    __atomic_store_n(&timeslice_process.running, false, __ATOMIC_SEQ_CST);
}

static void *keeper(void *unused) {
    (void)unused;
    while (!__atomic_load_n(&timeslice_process.ended, __ATOMIC_SEQ_CST)) {
        uint64_t now = timeslice_now(), next;
        char woken[64];
        attend(now);
        next = arbiter.socket.fd < 0 ? connect_at : now + ASK_AGAIN;
        for (unsigned i = 0; i < timeslice_process.count; i++) {
            uint64_t at = step(&timeslice_process.card[i], now);
            if (at < next) next = at;
        }
        if (timeslice_process.threadless) return end_without_drainer(), NULL;
        bool wakeable = gputile_guarded_fd_is_ours(&timeslice_process.woken);
        if (!wakeable && now + LOOK_EVERY < next) next = now + LOOK_EVERY;
        struct pollfd waits[2] = {{.fd = wakeable ? timeslice_process.woken.fd : -1, .events = POLLIN},
                                  {.fd = arbiter.socket.fd, .events = POLLIN}};
        now = timeslice_now();
        struct timespec pause = {.tv_nsec = next > now ? (long)((next - now) % 1000000000) : 0};
        pause.tv_sec = next > now ? (time_t)((next - now) / 1000000000) : 0;
        ppoll(waits, 2, &pause, NULL);
        if (gputile_guarded_fd_is_ours(&timeslice_process.woken) &&
            recv(timeslice_process.woken.fd, woken, sizeof woken, MSG_DONTWAIT) < 0)
            continue; /* a message, or time */
    }
    return NULL;
}

bool timeslice_keeper_start(void) {
    arbiter = (struct arbiter_link){.socket = GPUTILE_GUARDED_FD_NONE};
    connect_at = 0, alone = false;
    read_shares();
    if (timeslice_process.threadless)
        for (unsigned i = 0; i < timeslice_process.count; i++) {
            if (!timeslice_watch(&timeslice_process.card[i], true)) return false;
            timeslice_watch(&timeslice_process.card[i], false);
        }
    timeslice_process.threadless = false;
    return timeslice_start_thread(keeper, NULL);
}

static void in_child(void) { arbiter_link_close(&arbiter); }

static const struct gputile_fork_handlers handlers = {.order = GPUTILE_FORK_KEEPER, .in_child = in_child};
static const struct gputile_fork_handlers *const registered GPUTILE_FORK_HANDLERS = &handlers;
