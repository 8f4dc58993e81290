/* The file `share` beside the arbiter's socket, with the container's shares while no arbiter runs. */
#ifndef GPUTILE_TIMESLICE_SHARE_FILE_H
#define GPUTILE_TIMESLICE_SHARE_FILE_H

#include <stdbool.h>
#include <stdint.h>

/* Read the shares of GPUs and the quantum from the file beside the socket. A share that cannot be read is one
 * sixteenth. */
void timeslice_share_read(const char *socket_path, unsigned count, const char *const *uuids, uint64_t *shares,
                          uint64_t *quantum);

/* Parse the file. Returns whether the file is complete. A GPU that the file does not name keeps its share. */
bool timeslice_share_parse(char *text, unsigned count, const char *const *uuids, uint64_t *shares, uint64_t *quantum);

#endif
