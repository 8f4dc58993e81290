/* The keeper: asks for turns, opens and shuts the gates, and gives turns back. One thread in the process. */
#ifndef GPUTILE_TIMESLICE_KEEPER_H
#define GPUTILE_TIMESLICE_KEEPER_H

#include <stdbool.h>

/* Start it; false if it cannot be, or there was a drainer that could not be and still cannot. */
bool timeslice_keeper_start(void);

#endif
