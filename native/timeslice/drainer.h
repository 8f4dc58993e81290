/* The drainers. Each GPU has one such thread. It waits until the GPU has finished the submitted work, and publishes the
 * GPU's progress. */
#ifndef GPUTILE_TIMESLICE_DRAINER_H
#define GPUTILE_TIMESLICE_DRAINER_H

#include <stdbool.h>

#include "timeslice/gpu.h"

/* Start or stop watching the GPU. Returns false if the GPU has no drainer and none can be started. */
bool timeslice_watch(struct timeslice_gpu *gpu, bool watch);

/* Wait until no drainer uses the driver, but for at most a fifth of a second. */
void timeslice_drainers_leave(void);

/* To be called before a context is destroyed, from any thread. When it returns, no drainer uses the context. */
void timeslice_forget_context(void *context);

#endif
