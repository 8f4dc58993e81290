/* The drainers: one thread per GPU, which waits until the GPU has finished the submitted work, and publishes its
 * progress. */
#ifndef GPUTILE_TIMESLICE_DRAINER_H
#define GPUTILE_TIMESLICE_DRAINER_H

#include <stdbool.h>

#include "timeslice/gpu.h"

/* Start or stop watching the GPU; false if there is no drainer and none can be started. */
bool timeslice_watch(struct timeslice_gpu *gpu, bool watch);

/* Wait until no drainer uses the driver, for at most a fifth of a second. */
void timeslice_drainers_leave(void);

/* Call before a context is destroyed, from any thread: when this returns, no drainer uses the context. */
void timeslice_forget_context(void *context);

#endif
