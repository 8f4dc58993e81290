/* What is enforced on this container: the agent's file, which the container can read and not write.
 *
 *   gputile 1                         the file's version
 *   overhead <MiB>                    optional: the most that contexts and modules are charged, a process and GPU,
 *                                      where what they took is not known exactly; 0: nothing is measured
 *   turn <socket>                     optional: where the GPU's time is handed out
 *   card <UUID> <MiB> <percent>       one line a GPU, in any order
 *   end                               the file is whole
 *
 * Words are separated by one blank. Anything else is a damaged file, and then there is no GPU.
 */
#ifndef GPUTILE_LIMITS_H
#define GPUTILE_LIMITS_H

#include <stddef.h>
#include <stdint.h>

#include "base/layouts.h"

enum { GPUTILE_DEFAULT_OVERHEAD_MIB = 1024 };

struct gputile_gpu {
    char uuid[GPUTILE_UUID_SIZE];
    uint64_t bytes;
    unsigned percent;
};

struct gputile_limits {
    unsigned count;
    struct gputile_gpu gpu[GPUTILE_MOST_GPUS];
    uint64_t overhead_bytes;
    char timeslice_socket[GPUTILE_SOCKET_PATH_SIZE]; /* "" for none */
};

/* Parse a file's content; return NULL, or what is wrong with it. */
const char *gputile_limits_parse(const char *text, size_t length, struct gputile_limits *limits);

/* Read a file and put it in force; return NULL, or what is wrong with it. */
const char *gputile_limits_load(const char *path);

/* What is in force: nothing before a file was loaded. */
const struct gputile_limits *gputile_limits(void);

#endif
