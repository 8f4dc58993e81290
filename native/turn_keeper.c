/* The keeper: asks for turns, opens and shuts the gates, and gives turns back. One thread; it makes no driver calls. */
#define _GNU_SOURCE
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include "turn_card.h"
#include "turn_link.h"

#define CONNECT_EVERY (250 * TURN_MS)
#define ANSWER_WITHIN (1000 * TURN_MS) /* an arbiter that says nothing for so long is gone */
#define ASK_AGAIN (250 * TURN_MS)
#define GIVE_BACK_IDLE (1 * TURN_MS)
#define LOOK_EVERY (2 * TURN_MS) /* where the program has closed what wakes the keeper */
#define GIVE_UP_DRAINING (2000 * TURN_MS)
#define NEVER UINT64_MAX

static struct turn_link arbiter = {.socket = GPUTILE_OWNS_NOTHING};
static uint64_t connect_at;
static bool alone; /* there was no arbiter when one was looked for last */

uint64_t turn_quantum(void) { return __atomic_load_n(&turn_process.quantum, __ATOMIC_RELAXED); }
static uint64_t quantum(void) { return turn_quantum(); }
static uint64_t share_of(const struct turn_card *card) { return __atomic_load_n(&card->share, __ATOMIC_RELAXED); }
static unsigned number_of(const struct turn_card *card) { return (unsigned)(card - turn_process.card); }
static bool wanted(struct turn_card *card) { return __atomic_load_n(&card->waiting, __ATOMIC_SEQ_CST) > 0; }

static uint64_t idle_for(struct turn_card *card, uint64_t now) {
    uint64_t since = __atomic_load_n(&card->idle_since, __ATOMIC_ACQUIRE);
    return since && since < now ? now - since : 0;
}

/* -- turns */

static void begin(struct turn_card *card, uint64_t length, uint64_t now) {
    card->state = TURN_HELD, card->since = now;
    __atomic_store_n(&card->idle, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&card->idle_since, length ? now : 0, __ATOMIC_RELEASE);
    if (!turn_watch(card, length != 0)) turn_process.threadless = true;
    turn_set_gate(card, length ? TURN_METERED : TURN_WIDE, now + length);
}

/* A turn without end gets one, or one with an end another. */
static void limit(struct turn_card *card, uint64_t end) {
    if (!turn_watch(card, true)) turn_process.threadless = true;
    turn_set_gate(card, TURN_METERED, end);
}

static void shut(struct turn_card *card, uint64_t now) {
    turn_set_gate(card, TURN_SHUT, 0);
    card->state = TURN_ENDING, card->due = card->ending_since = now;
}

/* The arbiter knows that this card is wanted, and has to say something before long. */
static uint64_t ask(struct turn_card *card, uint64_t now) {
    arbiter.heard = now;
    card->state = TURN_ASKED;
    return card->due = now + ASK_AGAIN;
}

static void finish(struct turn_card *card, uint64_t now) {
    uint64_t spent = now - card->since, idle = __atomic_load_n(&card->idle, __ATOMIC_RELAXED) + idle_for(card, now);
    bool again = wanted(card);
    spent -= idle < spent ? idle : spent;
    turn_watch(card, false);
    card->state = TURN_NONE;
    if (!card->local) {
        turn_account_note(card, spent, now);
        turn_link_say(&arbiter, TURN_DONE, number_of(card), card->number, spent, again);
        if (again) ask(card, now);
        return;
    }
    card->local = false;
    if (card->paid) turn_account_correct(card, spent, &card->paid);
    card->paid = 0;
}

/* Without an arbiter: a turn when the container's account allows one. */
static void begin_alone(struct turn_card *card, uint64_t now) {
    uint64_t at, length = share_of(card) < TURN_WHOLE ? quantum() : 0;
    if (length && !turn_account_begin(card, length, now, &card->paid, &at)) {
        card->state = TURN_PAUSE, card->due = at;
        return;
    }
    card->local = true;
    begin(card, length, now);
}

/* A turn that lasts longer than it was taken to is paid for as it goes. */
static void pay_on(struct turn_card *card, uint64_t now) {
    uint64_t spent = now - card->since + quantum() / 2, before = card->paid;
    if (!card->local || !before) return;
    if (spent * TURN_WHOLE / share_of(card) > before) turn_account_correct(card, spent, &card->paid);
}

static bool is_done(struct turn_card *card, uint64_t now) {
    if (turn_drained(card) || now - card->ending_since >= GIVE_UP_DRAINING) return true;
    /* During a capture nobody can tell; what was submitted before is no more than a part of a quantum. */
    return turn_capturing() && now - card->ending_since >= quantum() / 4;
}

/* Do what is due with a card; return when to look again. */
static uint64_t step(struct turn_card *card, uint64_t now) {
    uint64_t end;
    switch (card->state) {
    case TURN_PAUSE:
        if (now < card->due && !arbiter.agreed) return card->due;
        card->state = TURN_NONE;
        return now;
    case TURN_NONE:
        if (!wanted(card) || (!alone && !arbiter.agreed)) return NEVER;
        if (arbiter.agreed) {
            turn_link_say(&arbiter, TURN_WANT, number_of(card), 0, 0, 0);
            return ask(card, now);
        }
        begin_alone(card, now);
        return now;
    case TURN_ASKED:
        if (now < card->due) return card->due;
        turn_link_say(&arbiter, TURN_WANT, number_of(card), 0, 0, 0);
        return card->due = now + ASK_AGAIN;
    case TURN_HELD:
        if (__atomic_load_n(&card->gate, __ATOMIC_RELAXED) == TURN_WIDE) return NEVER;
        end = __atomic_load_n(&card->end, __ATOMIC_RELAXED);
        if (now < end && (wanted(card) || idle_for(card, now) < GIVE_BACK_IDLE)) return now + GIVE_BACK_IDLE < end ? now + GIVE_BACK_IDLE : end;
        shut(card, now);
        return now;
    case TURN_ENDING:
        if (is_done(card, now)) return finish(card, now), now;
        if (now < card->due) return card->due;
        pay_on(card, now);
        if (!card->local) turn_link_say(&arbiter, TURN_BUSY, number_of(card), card->number, 0, 0);
        return card->due = now + quantum() / 2;
    }
    return NEVER;
}

/* -- the arbiter */

static void read_shares(void) {
    uint64_t shares[GPUTILE_MOST_CARDS], found;
    turn_share_read(turn_process.socket_path, turn_process.count, turn_process.uuids, shares, &found);
    for (unsigned i = 0; i < turn_process.count; i++) __atomic_store_n(&turn_process.card[i].share, shares[i], __ATOMIC_RELAXED);
    __atomic_store_n(&turn_process.quantum, found, __ATOMIC_RELAXED);
}

/* There is an arbiter, or none any more: turns that were begun under the other rule end soon. */
static void change_rule(uint64_t now) {
    for (unsigned i = 0; i < turn_process.count; i++) {
        struct turn_card *card = &turn_process.card[i];
        bool wide = __atomic_load_n(&card->gate, __ATOMIC_RELAXED) == TURN_WIDE;
        if (card->state == TURN_ASKED) card->state = TURN_NONE;
        if (card->state == TURN_HELD || card->state == TURN_ENDING) {
            /* What was had before is settled with the other one: a turn without end may have lasted for hours. */
            if (!card->local) card->since = now, __atomic_store_n(&card->idle, 0, __ATOMIC_RELAXED);
            card->local = true;
        }
        if (card->state == TURN_HELD && wide && (arbiter.agreed || share_of(card) < TURN_WHOLE)) limit(card, now + (arbiter.agreed ? 0 : quantum()));
    }
}

static void hang_up(uint64_t now) {
    turn_link_close(&arbiter);
    alone = true;
    connect_at = now + CONNECT_EVERY;
    read_shares();
    change_rule(now);
}

static void take(const struct turn_message *message, uint64_t now) {
    struct turn_card *card = message->card < turn_process.count ? &turn_process.card[message->card] : NULL;
    if (message->kind == TURN_WELCOME && !arbiter.agreed) {
        if (message->a != 1) return hang_up(now);
        arbiter.agreed = true, alone = false;
        if (message->b) __atomic_store_n(&turn_process.quantum, message->b, __ATOMIC_RELAXED);
        for (unsigned i = 0; i < turn_process.count; i++) turn_link_card(&arbiter, i, turn_process.uuids[i]);
        change_rule(now);
    } else if (message->kind == TURN_TURN && card && card->state == TURN_ASKED) {
        card->number = message->turn, card->local = false;
        begin(card, message->a, now);
    } else if (message->kind == TURN_LIMIT && card && card->state == TURN_HELD && !card->local && card->number == message->turn) {
        limit(card, now + message->a);
    } else if (!arbiter.agreed) {
        hang_up(now);
    }
}

static void attend(uint64_t now) {
    struct turn_message message;
    bool asked = false;
    if (arbiter.socket.fd < 0 && now >= connect_at) {
        if (turn_link_open(&arbiter, turn_process.socket_path)) return;
        hang_up(now);
    }
    bool had = arbiter.socket.fd >= 0;
    while (turn_link_hear(&arbiter, &message)) take(&message, now);
    for (unsigned i = 0; i < turn_process.count; i++) asked = asked || turn_process.card[i].state == TURN_ASKED;
    if (arbiter.socket.fd >= 0 && (asked || !arbiter.agreed) && now > arbiter.heard + ANSWER_WITHIN) turn_link_close(&arbiter);
    if (had && arbiter.socket.fd < 0) hang_up(now);
}

/* Without a drainer nobody can tell what a card has done: those who submit have to wait themselves (turn_here.c). */
static void end_without_drainer(void) {
    turn_link_close(&arbiter);
    turn_threads_failed();
    for (unsigned i = 0; i < turn_process.count; i++) {
        struct turn_card *card = &turn_process.card[i];
        turn_watch(card, false);
        card->state = TURN_NONE, card->local = false, card->paid = 0;
        turn_set_gate(card, TURN_SHUT, 0);
    }
    __atomic_store_n(&turn_process.running, false, __ATOMIC_SEQ_CST);
}

static void *keeper(void *unused) {
    (void)unused;
    while (!__atomic_load_n(&turn_process.ended, __ATOMIC_SEQ_CST)) {
        uint64_t now = turn_now(), next;
        char woken[64];
        attend(now);
        next = arbiter.socket.fd < 0 ? connect_at : now + ASK_AGAIN;
        for (unsigned i = 0; i < turn_process.count; i++) {
            uint64_t at = step(&turn_process.card[i], now);
            if (at < next) next = at;
        }
        if (turn_process.threadless) return end_without_drainer(), NULL;
        bool wakeable = gputile_owns(&turn_process.woken);
        if (!wakeable && now + LOOK_EVERY < next) next = now + LOOK_EVERY;
        struct pollfd waits[2] = {{.fd = wakeable ? turn_process.woken.fd : -1, .events = POLLIN}, {.fd = arbiter.socket.fd, .events = POLLIN}};
        now = turn_now();
        struct timespec pause = {.tv_nsec = next > now ? (long)((next - now) % 1000000000) : 0};
        pause.tv_sec = next > now ? (time_t)((next - now) / 1000000000) : 0;
        ppoll(waits, 2, &pause, NULL);
        if (gputile_owns(&turn_process.woken) && recv(turn_process.woken.fd, woken, sizeof woken, MSG_DONTWAIT) < 0) continue; /* a message, or time */
    }
    return NULL;
}

void turn_keeper_in_child(void) { turn_link_close(&arbiter); }

bool turn_keeper_start(void) {
    arbiter = (struct turn_link){.socket = GPUTILE_OWNS_NOTHING};
    connect_at = 0, alone = false;
    read_shares();
    if (turn_process.threadless)
        for (unsigned i = 0; i < turn_process.count; i++) {
            if (!turn_watch(&turn_process.card[i], true)) return false;
            turn_watch(&turn_process.card[i], false);
        }
    turn_process.threadless = false;
    return turn_thread(keeper, NULL);
}
