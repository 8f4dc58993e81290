/* One card as this process uses it: the gate that submitting threads pass, and how far the card has got.
 *
 * Three kinds of threads meet here. Submitting threads pass the gate (turn.c). The keeper, one in the process, opens
 * and shuts gates as the arbiter says (turn_keeper.c). A drainer for each card waits for what was submitted, in turns
 * with an end only (turn_drain.c).
 */
#ifndef GPUTILE_TURN_CARD_H
#define GPUTILE_TURN_CARD_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "limits.h"
#include "owned.h"

enum { TURN_MOST_CONTEXTS = 8 };
#define TURN_MS ((uint64_t)1000000)
#define TURN_WHOLE ((uint64_t)1000000) /* parts of a card's time */

/* WIDE: a turn without end. METERED: until `end`, and not too far ahead of the card. */
enum turn_gate { TURN_SHUT, TURN_METERED, TURN_WIDE };

/* What the keeper is about with a card. */
enum turn_state { TURN_NONE, TURN_ASKED, TURN_HELD, TURN_ENDING, TURN_PAUSE };

/* In `passes`: the threads that are submitting now, and above them the number of finished submissions. */
#define TURN_INSIDE(passes) ((passes) & 0xffff)
#define TURN_FINISHED(passes) ((passes) >> 16)
#define TURN_PASS ((uint64_t)1 << 16)

struct turn_card {
    /* Any thread, atomically. */
    uint64_t passes;
    int gate;
    uint64_t end;         /* METERED: no submission from then on */
    uint64_t ahead_until; /* METERED: the finished submissions that the card may be behind with */
    uint64_t drained;     /* the finished submissions that the card has done */
    uint64_t idle_since;  /* in a turn with an end: since when all was done; 0: not idle */
    uint64_t idle;        /* for how long it was, before that */
    uint64_t last_pass;   /* METERED: when a submission finished last */
    void *context[TURN_MOST_CONTEXTS];
    int forgotten[TURN_MOST_CONTEXTS]; /* a context of this place has gone, and its event with it */
    int waiting; /* threads at the gate */

    /* Guards waiting for changes; the drainer's wish. */
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool watch, draining, has_drainer;
    uint64_t rounds; /* that the drainer has finished */

    /* The keeper alone. */
    enum turn_state state;
    bool local; /* a turn by this process's own clock: there is no arbiter */
    uint32_t number;
    uint64_t since, due, ending_since;
    uint64_t paid; /* local: by how much the container's account was moved on for this turn */
    uint64_t share; /* of the card, in parts of TURN_WHOLE; the keeper or who starts one writes it, atomically */
};

struct turn_process {
    unsigned count;
    const char *const *uuids;
    char socket_path[108];
    uint64_t quantum; /* the keeper writes it, atomically */
    struct owned wake, woken; /* a pair of sockets, from whoever waits to the keeper */
    bool ended; /* the process ends: nothing waits any more */
    bool running; /* there is a keeper */
    bool threadless; /* a drainer is missing: the keeper ends */
    struct turn_card card[GPUTILE_MOST_CARDS];
};

extern struct turn_process turn_process;

uint64_t turn_now(void); /* nanoseconds */
uint64_t turn_quantum(void);
/* Open or shut a gate; sets `end` for METERED. */
void turn_set_gate(struct turn_card *card, enum turn_gate gate, uint64_t end);
/* Have the keeper look at its cards. Any thread. */
void turn_wake_keeper(void);
/* Whether all that was submitted is done, and nobody submits. */
bool turn_drained(struct turn_card *card);

/* Start the keeper; false if it cannot be, or there was a drainer that could not be and still cannot. */
bool turn_keeper_start(void);
void turn_keeper_in_child(void);
/* Start a thread that no signal of the application reaches. */
bool turn_thread(void *(*body)(void *), void *argument);
/* Have the drainer follow the card, or not; false if there is none and it cannot be started. */
bool turn_watch(struct turn_card *card, bool watch);
/* Whether a capture of a graph is going on somewhere in this process: nothing may wait for a context then. */
bool turn_capturing(void);
/* Wait for the calling thread's context; false if a capture is in the way. */
bool turn_wait_here(void);
/* Wait until no drainer uses the driver any more, at most for a fifth of a second. */
void turn_drainers_leave(void);
void turn_drain_in_child(void);

/* The container's account where no arbiter keeps it (turn_account.c). Begin a turn of `length`: `paid` is what it cost; or
 * false, and it may be tried again `at` a moment. Then say how long it was, now and again. */
bool turn_account_begin(const struct turn_card *card, uint64_t length, uint64_t now, uint64_t *paid, uint64_t *at);
void turn_account_correct(const struct turn_card *card, uint64_t spent, uint64_t *paid);
/* Take note of a turn that the arbiter gave: processes without one wait for what it cost, a quantum's at most. */
void turn_account_note(const struct turn_card *card, uint64_t spent, uint64_t now);

/* Without threads (turn_here.c): whether a thread could not be started a moment ago; that it could not; and around a
 * submission then, where `before` is false if there is nothing to keep to. */
bool turn_threads_missing(void);
void turn_threads_failed(void);
bool turn_here_before(struct turn_card *card);
void turn_here_after(struct turn_card *card);
void turn_here_in_child(void);

/* The share of a card and the quantum by the file beside the socket; one sixteenth where it cannot be read. */
void turn_share_read(const char *socket_path, unsigned count, const char *const *uuids, uint64_t *shares, uint64_t *quantum);
/* Parse such a file; return whether it is whole. Cards that it does not name keep their share. */
bool turn_share_parse(char *text, unsigned count, const char *const *uuids, uint64_t *shares, uint64_t *quantum);

#endif
