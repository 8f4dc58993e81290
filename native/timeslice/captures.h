/* Waits for the work of a context. That would invalidate a graph capture of its streams, so captures are counted, and a
 * capture begins only when no thread waits. */
#ifndef GPUTILE_TIMESLICE_CAPTURES_H
#define GPUTILE_TIMESLICE_CAPTURES_H

#include <stdbool.h>

#include "base/cuda_types.h"

/* Call with 1 before a call that begins a capture, with -1 if that call failed, and with -1 after the end of a
 * capture. */
void timeslice_count_capture(int change);

/* Whether a capture is in progress in this process. */
bool timeslice_capturing(void);

/* Wait for the calling thread's context; false if a capture prevents it. */
bool timeslice_wait_for_current(void);

/* Wait for a context that is current, by its event or without one (NULL); false if a capture prevents it. */
bool timeslice_wait_for(CUcontext context, CUevent event);

#endif
