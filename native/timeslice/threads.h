/* Threads of this library, of which the program does not know. */
#ifndef GPUTILE_TIMESLICE_THREADS_H
#define GPUTILE_TIMESLICE_THREADS_H

#include <stdbool.h>

/* Start a thread that receives no signals of the application; false if that fails. */
bool timeslice_start_thread(void *(*body)(void *), void *argument);

#endif
