/* Counts captures under the lock that threads hold while they wait for a context. */
#define _GNU_SOURCE
#include "timeslice/captures.h"

#include <pthread.h>

#include "base/driver.h"
#include "base/fork_handlers.h"

static pthread_mutex_t capture_mutex = PTHREAD_MUTEX_INITIALIZER;
static int captures;

void timeslice_count_capture(int change) {
    pthread_mutex_lock(&capture_mutex);
    if (captures + change >= 0) __atomic_store_n(&captures, captures + change, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&capture_mutex);
}

bool timeslice_capturing(void) { return __atomic_load_n(&captures, __ATOMIC_SEQ_CST) > 0; }

bool timeslice_wait_for_current(void) {
    pthread_mutex_lock(&capture_mutex);
    bool may = !captures && gputile_driver()->cuCtxSynchronize;
    if (may) gputile_driver()->cuCtxSynchronize();
    pthread_mutex_unlock(&capture_mutex);
    return may;
}

bool timeslice_wait_for(CUcontext context, CUevent event) {
    const struct gputile_driver *driver = gputile_driver();
    bool recorded = false;
    pthread_mutex_lock(&capture_mutex);
    if (captures) {
        pthread_mutex_unlock(&capture_mutex);
        return false;
    }
    if (event) recorded = driver->cuCtxRecordEvent(context, event) == CUDA_SUCCESS;
    /* Without the event, a capture that begins in the meantime must wait. */
    if (!recorded) driver->cuCtxSynchronize();
    pthread_mutex_unlock(&capture_mutex);
    if (recorded) driver->cuEventSynchronize(event);
    return true;
}

static void in_child(void) {
    pthread_mutex_init(&capture_mutex, NULL);
    captures = 0;
}

static const struct gputile_fork_handlers handlers = {.order = GPUTILE_FORK_CAPTURES, .in_child = in_child};
static const struct gputile_fork_handlers *const registered GPUTILE_FORK_HANDLERS = &handlers;
