/* The connection to the node's arbiter, which only the keeper uses. docs/reference/arbiter-protocol.md defines the
 * protocol. */
#ifndef GPUTILE_ARBITER_LINK_H
#define GPUTILE_ARBITER_LINK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/guarded_fd.h"
#include "base/layouts.h"

struct arbiter_link {
    struct gputile_guarded_fd socket;
    bool agreed;
    uint64_t since, heard;
    unsigned size;
    unsigned char buffer[512];
};

/* Connect and send HELLO. Returns false if no arbiter listens. */
bool arbiter_link_open(struct arbiter_link *link, const char *path);
void arbiter_link_close(struct arbiter_link *link);
/* Assign a number to a GPU of the limits. */
void arbiter_link_gpu(struct arbiter_link *link, unsigned gpu, const char *uuid);
void arbiter_link_send(struct arbiter_link *link, uint8_t kind, unsigned gpu, uint32_t turn, uint64_t a, uint64_t b);
/* Receive the next message. Returns false if there is no message, or if the connection has ended. Its descriptor is
 * then -1. */
bool arbiter_link_receive(struct arbiter_link *link, struct arbiter_message *message);

#endif
