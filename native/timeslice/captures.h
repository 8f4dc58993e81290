/* Waiting for the work of a context, which must not be done while one of its streams captures a graph: the capture
 * would be lost. So captures are counted, and one that begins waits for those who wait. */
#ifndef GPUTILE_TIMESLICE_CAPTURES_H
#define GPUTILE_TIMESLICE_CAPTURES_H

#include <stdbool.h>

#include "base/cuda_types.h"

/* 1 before a call that begins to capture a graph, -1 after it if it failed, and -1 after one that ends a capture. */
void timeslice_count_capture(int change);

/* Whether a capture is going on somewhere in this process. */
bool timeslice_capturing(void);

/* Wait for the calling thread's context; false if a capture is in the way. */
bool timeslice_wait_for_current(void);

/* Wait for a context that is current, by an event of its own or without (NULL); false if a capture is in the way. */
bool timeslice_wait_for(CUcontext context, CUevent event);

#endif
