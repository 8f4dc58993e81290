/* Whether this process may use GPUs, for which it must have read its limits and joined its allocation. */
#ifndef GPUTILE_INIT_H
#define GPUTILE_INIT_H

#include <stdbool.h>

/* Read the limits and join the allocation, once. If that fails, write a message to stderr and return false. The process
 * then gets no GPU. */
bool gputile_init(void);

/* The same before a context is created. Also returns false if the process is linked with unknown functions. */
bool gputile_init_checked(void);

#endif
