/* One GPU as this process uses it: the gate that submitting threads pass, and how far the GPU has got.
 *
 * Three kinds of threads meet here. Submitting threads pass the gate (timeslice.h). The keeper, one in the process,
 * opens and shuts gates as the arbiter says (keeper.h). A drainer for each GPU waits for what was submitted, in turns
 * with an end only (drainer.h).
 */
#ifndef GPUTILE_TIMESLICE_GPU_H
#define GPUTILE_TIMESLICE_GPU_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/guarded_fd.h"
#include "base/layouts.h"

enum { TIMESLICE_MOST_CONTEXTS = 8 };
#define TIMESLICE_MS    ((uint64_t)1000000)
#define TIMESLICE_WHOLE ((uint64_t)GPUTILE_SHARE_WHOLE) /* parts of a GPU's time */

/* WIDE: a turn without end. METERED: until `end`, and not too far ahead of the GPU. */
enum timeslice_gate { TIMESLICE_SHUT, TIMESLICE_METERED, TIMESLICE_WIDE };

/* What the keeper is about with a GPU. */
enum timeslice_state { TIMESLICE_NONE, TIMESLICE_ASKED, TIMESLICE_HELD, TIMESLICE_ENDING, TIMESLICE_PAUSE };

/* In `passes`: the threads that are submitting now, and above them the number of finished submissions. */
#define TIMESLICE_INSIDE(passes)   ((passes) & 0xffff)
#define TIMESLICE_FINISHED(passes) ((passes) >> 16)
#define TIMESLICE_PASS             ((uint64_t)1 << 16)

struct timeslice_gpu {
    /* Any thread, atomically. */
    uint64_t passes;
    int gate;
    uint64_t end; /* METERED: no submission from then on */
    uint64_t ahead_until; /* METERED: the finished submissions that the GPU may be behind with */
    uint64_t drained; /* the finished submissions that the GPU has done */
    uint64_t idle_since; /* in a turn with an end: since when all was done; 0: not idle */
    uint64_t idle; /* for how long it was, before that */
    uint64_t last_pass; /* METERED: when a submission finished last */
    void *context[TIMESLICE_MOST_CONTEXTS];
    int forgotten[TIMESLICE_MOST_CONTEXTS]; /* a context of this place has gone, and its event with it */
    int waiting; /* threads at the gate */

    /* The mutex guards `changed`, and what the drainer is asked to do. */
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool watch, draining, has_drainer;
    uint64_t rounds; /* that the drainer has finished */

    /* The keeper alone. */
    enum timeslice_state state;
    bool local; /* a turn by this process's own clock: there is no arbiter */
    uint32_t number;
    uint64_t since, due, ending_since;
    uint64_t paid; /* local: by how much the container's account was moved on for this turn */
    uint64_t share; /* of the GPU, in parts of TIMESLICE_WHOLE; the keeper or who starts one writes it, atomically */
};

struct timeslice_process {
    unsigned count;
    const char *const *uuids;
    char socket_path[GPUTILE_SOCKET_PATH_SIZE];
    uint64_t quantum; /* the keeper writes it, atomically */
    struct gputile_guarded_fd wake, woken; /* a pair of sockets, from whoever waits to the keeper */
    bool ended; /* the process ends: nothing waits any more */
    bool running; /* there is a keeper */
    bool threadless; /* a drainer is missing: the keeper ends */
    struct timeslice_gpu gpu[GPUTILE_MOST_GPUS];
};

extern struct timeslice_process timeslice_process;

/* CLOCK_MONOTONIC in nanoseconds. */
uint64_t timeslice_now(void);

/* How long a turn lasts, in nanoseconds. */
uint64_t timeslice_quantum(void);

/* Open or shut a gate; sets `end` for METERED. */
void timeslice_set_gate(struct timeslice_gpu *gpu, enum timeslice_gate gate, uint64_t end);

/* Have the keeper look at its GPUs. Any thread. */
void timeslice_wake_keeper(void);

/* Whether all that was submitted is done, and nobody submits. */
bool timeslice_drained(struct timeslice_gpu *gpu);

#endif
