/* Waits for the work of a context. A wait would invalidate a graph capture of the context's streams. So captures are
 * counted, and a capture begins only when no thread waits. */
#ifndef GPUTILE_TIMESLICE_CAPTURES_H
#define GPUTILE_TIMESLICE_CAPTURES_H

#include <stdbool.h>

#include "base/cuda_types.h"

/* To be called with 1 before a capture begins, and with -1 after the capture has ended or could not begin. */
void timeslice_count_capture(int change);

/* Whether a capture is in progress in this process. */
bool timeslice_capturing(void);

/* Wait for the calling thread's context. Returns false if a capture prevents the wait. */
bool timeslice_wait_for_current(void);

/* Wait for the current context, by its event or without one (NULL). Returns false if a capture prevents the wait. */
bool timeslice_wait_for(CUcontext context, CUevent event);

#endif
