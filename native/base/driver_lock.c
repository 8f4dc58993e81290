/* A lock that is held while the driver is called. */
#define _GNU_SOURCE
#include "base/driver_lock.h"

#include <stdbool.h>

void gputile_driver_lock(struct gputile_driver_lock *lock) {
    int before;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    pthread_mutex_lock(&lock->mutex);
    if (!lock->depth++) lock->cancelling = before;
}

void gputile_driver_unlock(struct gputile_driver_lock *lock) {
    const int before = lock->cancelling;
    const bool last = lock->depth > 0 && !--lock->depth; /* a child that was just forked holds no lock */
    pthread_mutex_unlock(&lock->mutex);
    if (last) pthread_setcancelstate(before, NULL);
}

void gputile_driver_lock_in_child(struct gputile_driver_lock *lock) {
    *lock = (struct gputile_driver_lock)GPUTILE_DRIVER_LOCK;
}
