/* The container's account of a GPU's time, for when no arbiter keeps it: one for all of its processes. */
#ifndef GPUTILE_TIMESLICE_ACCOUNT_H
#define GPUTILE_TIMESLICE_ACCOUNT_H

#include <stdbool.h>
#include <stdint.h>

#include "timeslice/gpu.h"

/* Begin a turn of `length`: `paid` is what it cost; or false, and it may be tried again `at` a moment. */
bool timeslice_account_begin(const struct timeslice_gpu *gpu, uint64_t length, uint64_t now, uint64_t *paid,
                             uint64_t *at);

/* Say how long it was, now and again. */
void timeslice_account_correct(const struct timeslice_gpu *gpu, uint64_t spent, uint64_t *paid);

/* Take note of a turn that the arbiter gave: processes without one wait for what it cost, a quantum's at most. */
void timeslice_account_note(const struct timeslice_gpu *gpu, uint64_t spent, uint64_t now);

#endif
