/* Turns in a process that cannot start threads. There, each submitting call waits and measures itself. */
#ifndef GPUTILE_TIMESLICE_THREADLESS_H
#define GPUTILE_TIMESLICE_THREADLESS_H

#include <stdbool.h>

#include "timeslice/gpu.h"

/* Whether a thread could not be started recently. */
bool timeslice_threads_missing(void);

/* Record that a thread could not be started, and log it once. */
void timeslice_threads_failed(void);

/* To be called before and after a submission in this case. `before` returns false if there is no limit. */
bool timeslice_threadless_before(struct timeslice_gpu *gpu);
void timeslice_threadless_after(struct timeslice_gpu *gpu);

#endif
