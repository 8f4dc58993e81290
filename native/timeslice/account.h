/* The container's account of a GPU's time while no arbiter runs, shared by all processes of the container. */
#ifndef GPUTILE_TIMESLICE_ACCOUNT_H
#define GPUTILE_TIMESLICE_ACCOUNT_H

#include <stdbool.h>
#include <stdint.h>

#include "timeslice/gpu.h"

/* Begin a turn of `length`, and set `paid` to its cost. If that is not possible yet, set `at` to the time for the next
 * attempt, and return false. */
bool timeslice_account_begin(const struct timeslice_gpu *gpu, uint64_t length, uint64_t now, uint64_t *paid,
                             uint64_t *at);

/* Correct the cost of the turn so far. */
void timeslice_account_correct(const struct timeslice_gpu *gpu, uint64_t spent, uint64_t *paid);

/* Record a turn granted by the arbiter: processes without an arbiter then wait for its cost, at most that of a
 * quantum. */
void timeslice_account_note(const struct timeslice_gpu *gpu, uint64_t spent, uint64_t now);

#endif
