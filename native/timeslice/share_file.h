/* The file `share` beside the arbiter's socket: what this container keeps to while there is no arbiter. */
#ifndef GPUTILE_TIMESLICE_SHARE_FILE_H
#define GPUTILE_TIMESLICE_SHARE_FILE_H

#include <stdbool.h>
#include <stdint.h>

/* The share of a GPU and the quantum by the file beside the socket; one sixteenth where it cannot be read. */
void timeslice_share_read(const char *socket_path, unsigned count, const char *const *uuids, uint64_t *shares,
                          uint64_t *quantum);

/* Parse such a file; return whether it is whole. GPUs that it does not name keep their share. */
bool timeslice_share_parse(char *text, unsigned count, const char *const *uuids, uint64_t *shares, uint64_t *quantum);

#endif
