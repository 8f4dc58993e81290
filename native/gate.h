/* Whether this process may use GPUs at all, and what is enforced on it. */
#ifndef GPUTILE_GATE_H
#define GPUTILE_GATE_H

#include <stdbool.h>

#include "limits.h"

/* Read the limits and join the allocation, once; false and a message on stderr if that cannot be done: no GPU then. */
bool gputile_open(void);

/* The same, before a context is made: also false while the process is linked with functions that are not known. */
bool gputile_admit(void);

/* What is enforced; only after gputile_open was true. */
const struct gputile_limits *gputile_limits(void);

/* Say something on stderr that the user has to know, "gputile: " before it. */
void gputile_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
