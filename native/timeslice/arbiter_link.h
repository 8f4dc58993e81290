/* The connection to the node's arbiter; docs/reference/arbiter-protocol.md has the protocol. The keeper alone uses it. */
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

/* Connect and greet; false if nobody is there. */
bool arbiter_link_open(struct arbiter_link *link, const char *path);
void arbiter_link_close(struct arbiter_link *link);
/* Say which number a GPU of the limits has here. */
void arbiter_link_gpu(struct arbiter_link *link, unsigned gpu, const char *uuid);
void arbiter_link_send(struct arbiter_link *link, uint8_t kind, unsigned gpu, uint32_t turn, uint64_t a, uint64_t b);
/* Take the next message that has come; false if there is none, or the connection has ended (its descriptor is -1 then).
 */
bool arbiter_link_receive(struct arbiter_link *link, struct arbiter_message *message);

#endif
