/* Descriptors in a program that may close them and reuse their numbers: daemons close all descriptors. */
#ifndef GPUTILE_GUARDED_FD_H
#define GPUTILE_GUARDED_FD_H

#include <stdbool.h>

struct gputile_guarded_fd {
    int fd; /* -1: none */
    unsigned long device, inode;
};
#define GPUTILE_GUARDED_FD_NONE {.fd = -1}

/* Take over a descriptor and record its file; -1 for none. A number of a standard stream is replaced by another one.
 * Not for descriptors without a file of their own, such as those of eventfd. */
void gputile_guarded_fd_set(struct gputile_guarded_fd *guarded, int fd);
/* Whether the number still refers to that file. */
bool gputile_guarded_fd_is_ours(const struct gputile_guarded_fd *guarded);
/* Close it, unless the number refers to another file by now. */
void gputile_guarded_fd_close(struct gputile_guarded_fd *guarded);

#endif
