/* The drainers: a thread for each GPU, which waits until the GPU has done what was submitted, and tells how far it
 * is. */
#ifndef GPUTILE_TIMESLICE_DRAINER_H
#define GPUTILE_TIMESLICE_DRAINER_H

#include <stdbool.h>

#include "timeslice/gpu.h"

/* Have the drainer follow the GPU, or not; false if there is none and it cannot be started. */
bool timeslice_watch(struct timeslice_gpu *gpu, bool watch);

/* Wait until no drainer uses the driver any more, at most for a fifth of a second. */
void timeslice_drainers_leave(void);

/* Before a context is destroyed: nothing in here uses it any more when this returns. Any thread. */
void timeslice_forget_context(void *context);

#endif
