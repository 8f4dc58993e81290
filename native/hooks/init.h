/* Whether this process may use GPUs: it must have read its limits and joined its allocation. */
#ifndef GPUTILE_INIT_H
#define GPUTILE_INIT_H

#include <stdbool.h>

/* Read the limits and join the allocation, once. If that fails, return false with a message on stderr: the process gets
 * no GPU. */
bool gputile_init(void);

/* The same, before a context is created: also false while the process is linked with unknown functions. */
bool gputile_init_checked(void);

#endif
