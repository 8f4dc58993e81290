/* Turns without threads: where the process may start none, who submits waits and measures itself, call by call. */
#ifndef GPUTILE_TIMESLICE_THREADLESS_H
#define GPUTILE_TIMESLICE_THREADLESS_H

#include <stdbool.h>

#include "timeslice/gpu.h"

/* Whether a thread could not be started a moment ago. */
bool timeslice_threads_missing(void);

/* Take note that a thread could not be started, and tell the user once. */
void timeslice_threads_failed(void);

/* Around a submission then; `before` is false if there is nothing to keep to. */
bool timeslice_threadless_before(struct timeslice_gpu *gpu);
void timeslice_threadless_after(struct timeslice_gpu *gpu);

#endif
