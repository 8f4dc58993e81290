/* The container's account of a GPU's time while no arbiter runs, shared by all processes of the container. */
#ifndef GPUTILE_TIMESLICE_ACCOUNT_H
#define GPUTILE_TIMESLICE_ACCOUNT_H

#include <stdbool.h>
#include <stdint.h>

#include "timeslice/gpu.h"

/* Begin a turn of `length`, and set `paid` to its cost. If the turn cannot begin yet, set `at` to the time of the next
 * attempt, and return false. */
bool timeslice_account_begin(const struct timeslice_gpu *gpu, uint64_t length, uint64_t now, uint64_t *paid,
                             uint64_t *at);

/* Correct the cost of the current turn. */
void timeslice_account_correct(const struct timeslice_gpu *gpu, uint64_t spent, uint64_t *paid);

/* Record a turn that the arbiter has granted. Processes without an arbiter then wait until its cost is paid, but at
 * most for the cost of a quantum. */
void timeslice_account_note(const struct timeslice_gpu *gpu, uint64_t spent, uint64_t now);

#endif
