/* A lock that is held while the driver is called. */
#pragma once

#include <pthread.h>

/* Recursive: a profiler's callback may come back in the same thread. A thread that were cancelled in the driver would take
 * the lock along, so none is while it holds one. */
struct gputile_driver_lock {
    pthread_mutex_t mutex;
    int depth; /* how often the thread that has it is inside */
    int cancelling; /* what that thread allowed before */
};

#define GPUTILE_DRIVER_LOCK {.mutex = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP}

void gputile_driver_lock(struct gputile_driver_lock *lock);
void gputile_driver_unlock(struct gputile_driver_lock *lock);
void gputile_driver_lock_in_child(struct gputile_driver_lock *lock); /* nobody has it there */
