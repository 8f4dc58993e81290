/* The state of a GPU in this process: the gate that submitting threads pass, and the progress of the GPU.
 *
 * Three kinds of threads share this state. Submitting threads pass the gate (timeslice.h). The keeper is one thread of
 * the process, which opens and closes gates as the arbiter orders (keeper.h). Each GPU has a drainer, which waits for
 * submitted work, but only in turns with an end (drainer.h).
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
#define TIMESLICE_WHOLE ((uint64_t)GPUTILE_SHARE_WHOLE) /* all of a GPU's time */

/* A WIDE gate is open in a turn without end. A METERED gate is open until `end`, for a limited number of unfinished
 * submissions. */
enum timeslice_gate { TIMESLICE_SHUT, TIMESLICE_METERED, TIMESLICE_WIDE };

/* The state of a GPU's turn, for the keeper. */
enum timeslice_state { TIMESLICE_NONE, TIMESLICE_ASKED, TIMESLICE_HELD, TIMESLICE_ENDING, TIMESLICE_PAUSE };

/* The low bits of `passes` are the number of threads that are submitting. The bits above them are the number of
 * finished submissions. */
#define TIMESLICE_INSIDE(passes)   ((passes) & 0xffff)
#define TIMESLICE_FINISHED(passes) ((passes) >> 16)
#define TIMESLICE_PASS             ((uint64_t)1 << 16)

struct timeslice_gpu {
    /* Any thread uses these fields, atomically. */
    uint64_t passes;
    int gate;
    uint64_t end; /* METERED: no submission may begin after this time */
    uint64_t ahead_until; /* METERED: the number of the last permitted submission */
    uint64_t drained; /* the number of submissions whose work is finished */
    uint64_t idle_since; /* in a turn with an end: since when all work is finished, or 0 */
    uint64_t idle; /* for how long the GPU was idle before `idle_since` */
    uint64_t last_pass; /* METERED: when the last submission finished */
    void *context[TIMESLICE_MOST_CONTEXTS];
    int forgotten[TIMESLICE_MOST_CONTEXTS]; /* the context in this slot was destroyed, with its event */
    int waiting; /* the number of threads at the gate */

    /* The mutex guards `changed` and the fields of the drainer. */
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool watch, draining, has_drainer;
    uint64_t rounds; /* the number of rounds that the drainer has finished */

    /* Only the keeper uses these fields. */
    enum timeslice_state state;
    bool local; /* the turn began by the container's account, without an arbiter */
    uint32_t number;
    uint64_t since, due, ending_since;
    uint64_t paid; /* local: the cost that was added to the container's account for this turn */
    uint64_t share; /* of TIMESLICE_WHOLE. Written atomically by the keeper, or before the keeper starts */
};

struct timeslice_process {
    unsigned count;
    const char *const *uuids;
    char socket_path[GPUTILE_SOCKET_PATH_SIZE];
    uint64_t quantum; /* written atomically by the keeper */
    struct gputile_guarded_fd wake, woken; /* a socket pair, from waiting threads to the keeper */
    bool ended; /* the process ends, so that no thread waits any more */
    bool running; /* the keeper runs */
    bool threadless; /* a drainer could not be started, so the keeper ends */
    struct timeslice_gpu gpu[GPUTILE_MOST_GPUS];
};

extern struct timeslice_process timeslice_process;

/* CLOCK_MONOTONIC in nanoseconds. */
uint64_t timeslice_now(void);

/* The duration of a turn in nanoseconds. */
uint64_t timeslice_quantum(void);

/* Open or close a gate. Sets `end` if the gate is METERED. */
void timeslice_set_gate(struct timeslice_gpu *gpu, enum timeslice_gate gate, uint64_t end);

/* Wake the keeper, so that it checks its GPUs. Any thread may call this. */
void timeslice_wake_keeper(void);

/* Whether all submitted work is finished, and no thread is submitting. */
bool timeslice_drained(struct timeslice_gpu *gpu);

#endif
