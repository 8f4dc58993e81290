/* Whether this process may use GPUs at all, and what is enforced on it. */
#ifndef GPUTILE_INIT_H
#define GPUTILE_INIT_H

#include <stdbool.h>

#include "accounting/limits.h"

/* Read the limits and join the allocation, once; false and a message on stderr if that cannot be done: no GPU then. */
bool gputile_init(void);

/* The same, before a context is made: also false while the process is linked with functions that are not known. */
bool gputile_init_checked(void);

/* What is enforced; only after gputile_init was true. */
const struct gputile_limits *gputile_limits(void);

/* Say something on stderr that the user has to know, "gputile: " before it. */
void gputile_log(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
