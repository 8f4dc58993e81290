/* Threads of this library in a program that knows nothing of them. */
#ifndef GPUTILE_TIMESLICE_THREADS_H
#define GPUTILE_TIMESLICE_THREADS_H

#include <stdbool.h>

/* Start a thread that no signal of the application reaches; false if it cannot be. */
bool timeslice_start_thread(void *(*body)(void *), void *argument);

#endif
