/* Whether this process may use GPUs at all: it has read its limits and joined its allocation. */
#ifndef GPUTILE_INIT_H
#define GPUTILE_INIT_H

#include <stdbool.h>

/* Read the limits and join the allocation, once; false and a message on stderr if that cannot be done: no GPU then. */
bool gputile_init(void);

/* The same, before a context is made: also false while the process is linked with functions that are not known. */
bool gputile_init_checked(void);

#endif
