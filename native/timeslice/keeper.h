/* The keeper, one thread of the process: requests turns, opens and closes the gates, and returns turns. */
#ifndef GPUTILE_TIMESLICE_KEEPER_H
#define GPUTILE_TIMESLICE_KEEPER_H

#include <stdbool.h>

/* Start the keeper; false if it, or a drainer that could not be started before, cannot be started. */
bool timeslice_keeper_start(void);

#endif
