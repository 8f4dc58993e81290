/* A lock that is held while the driver is called. */
#pragma once

#include <pthread.h>

/* The lock is recursive, because a profiler's callback may call this library again in the same thread. A thread cannot
 * be cancelled while it holds the lock, because it would never unlock it. */
struct gputile_driver_lock {
    pthread_mutex_t mutex;
    int depth; /* how often the thread that holds the lock has locked it */
    int cancelling; /* the cancellation state that this thread had before */
};

#define GPUTILE_DRIVER_LOCK {.mutex = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP}

void gputile_driver_lock(struct gputile_driver_lock *lock);
void gputile_driver_unlock(struct gputile_driver_lock *lock);
void gputile_driver_lock_in_child(struct gputile_driver_lock *lock); /* no thread of the child holds it */
