/* The connection to the node's arbiter; docs/concepts/arbiter.md has the protocol. The keeper alone uses it. */
#ifndef GPUTILE_TURN_LINK_H
#define GPUTILE_TURN_LINK_H

#include <stdbool.h>
#include <stdint.h>

#include "owned.h"

enum turn_kind {
    TURN_HELLO = 1, TURN_CARD, TURN_WANT, TURN_BUSY, TURN_DONE,
    TURN_WELCOME = 65, TURN_TURN, TURN_LIMIT, TURN_WAIT
};

struct turn_message {
    uint8_t kind, version;
    uint16_t card;
    uint32_t turn;
    uint64_t a, b, unused;
};

struct turn_link {
    struct owned socket;
    bool agreed;
    uint64_t since, heard;
    unsigned size;
    unsigned char buffer[512];
};

/* Connect and greet; false if nobody is there. */
bool turn_link_open(struct turn_link *link, const char *path);
void turn_link_close(struct turn_link *link);
/* Say which number a card of the limits has here. */
void turn_link_card(struct turn_link *link, unsigned card, const char *uuid);
void turn_link_say(struct turn_link *link, enum turn_kind kind, unsigned card, uint32_t turn, uint64_t a, uint64_t b);
/* Take the next message that has come; false if there is none, or the connection has ended (its descriptor is -1 then). */
bool turn_link_hear(struct turn_link *link, struct turn_message *message);

#endif
