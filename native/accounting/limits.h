/* The limits of this container, from the agent's file, which the container can read but not write.
 *
 *   gputile 1                         the file's version
 *   overhead <MiB>                    optional: the most that a process is charged for contexts and modules on a GPU
 *                                      where their memory is not known exactly. With 0, nothing is measured.
 *   turn <socket>                     optional: the socket of the arbiter of GPU time
 *   card <UUID> <MiB> <percent>       one line per GPU, in any order
 *   end                               the file is complete
 *
 * Words are separated by one space. If the file has other content, it is damaged, and the process gets no GPU.
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
    char timeslice_socket[GPUTILE_SOCKET_PATH_SIZE]; /* "" without an arbiter */
};

/* Parse the content of a file. Returns NULL, or a description of the error. */
const char *gputile_limits_parse(const char *text, size_t length, struct gputile_limits *limits);

/* Read a file and apply its limits. Returns NULL, or a description of the error. */
const char *gputile_limits_load(const char *path);

/* The limits of this process, which are empty until a file was loaded. */
const struct gputile_limits *gputile_limits(void);

#endif
