/* The keeper. This thread of the process requests turns, opens and closes the gates, and returns turns. */
#ifndef GPUTILE_TIMESLICE_KEEPER_H
#define GPUTILE_TIMESLICE_KEEPER_H

#include <stdbool.h>

/* Start the keeper, and a drainer that could not be started before. Returns false if one of them cannot be started. */
bool timeslice_keeper_start(void);

#endif
