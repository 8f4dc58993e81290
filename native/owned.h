/* Descriptors in a program that may close any number, and open something else under it: daemons close them all. */
#ifndef GPUTILE_OWNED_H
#define GPUTILE_OWNED_H

#include <stdbool.h>

struct owned {
    int fd; /* -1: none */
    unsigned long device, inode;
};
#define GPUTILE_OWNS_NOTHING {.fd = -1}

/* Remember which file a descriptor stands for; -1 for none. Not for those without a file of their own, as eventfd's. */
void gputile_own(struct owned *owned, int fd);
/* Whether the number still stands for that file. */
bool gputile_owns(const struct owned *owned);
/* Close it, unless the number is somebody else's by now. */
void gputile_disown(struct owned *owned);

#endif
