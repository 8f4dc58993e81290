/* Descriptors in a program that may close any number, and open something else under it: daemons close them all. */
#ifndef GPUTILE_GUARDED_FD_H
#define GPUTILE_GUARDED_FD_H

#include <stdbool.h>

struct gputile_guarded_fd {
    int fd; /* -1: none */
    unsigned long device, inode;
};
#define GPUTILE_GUARDED_FD_NONE {.fd = -1}

/* Take over a descriptor, and remember which file it stands for; -1 for none. It gets another number where it has one of
 * the standard streams. Not for those without a file of their own, as eventfd's. */
void gputile_guarded_fd_set(struct gputile_guarded_fd *guarded, int fd);
/* Whether the number still stands for that file. */
bool gputile_guarded_fd_is_ours(const struct gputile_guarded_fd *guarded);
/* Close it, unless the number is somebody else's by now. */
void gputile_guarded_fd_close(struct gputile_guarded_fd *guarded);

#endif
