/* Threads that this library starts without the program's knowledge. */
#ifndef GPUTILE_TIMESLICE_THREADS_H
#define GPUTILE_TIMESLICE_THREADS_H

#include <stdbool.h>

/* Start a thread that receives none of the application's signals. Returns false if that fails. */
bool timeslice_start_thread(void *(*body)(void *), void *argument);

#endif
