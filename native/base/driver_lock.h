/* A lock that is held while the driver is called. */
#pragma once

#include <pthread.h>

/* Recursive, since a profiler's callback may return here in the same thread. A thread cannot be cancelled while it
 * holds the lock: it would never unlock it. */
struct gputile_driver_lock {
    pthread_mutex_t mutex;
    int depth; /* how often the thread that holds it has locked it */
    int cancelling; /* the cancellation state of that thread before */
};

#define GPUTILE_DRIVER_LOCK {.mutex = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP}

void gputile_driver_lock(struct gputile_driver_lock *lock);
void gputile_driver_unlock(struct gputile_driver_lock *lock);
void gputile_driver_lock_in_child(struct gputile_driver_lock *lock); /* unlocks it: no thread of the child holds it */
