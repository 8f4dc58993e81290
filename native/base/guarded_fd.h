/* Descriptors in a program that may close them and reuse their numbers, as daemons do. */
#ifndef GPUTILE_GUARDED_FD_H
#define GPUTILE_GUARDED_FD_H

#include <stdbool.h>

struct gputile_guarded_fd {
    int fd; /* -1 for no descriptor */
    unsigned long device, inode;
};
#define GPUTILE_GUARDED_FD_NONE {.fd = -1}

/* Take over a descriptor, or -1, and record its file. If its number is that of a standard stream, another number
 * replaces it. Descriptors without their own file, such as an eventfd, cannot be guarded. */
void gputile_guarded_fd_set(struct gputile_guarded_fd *guarded, int fd);
/* Whether the number still refers to the recorded file. */
bool gputile_guarded_fd_is_ours(const struct gputile_guarded_fd *guarded);
/* Close the descriptor, unless its number now refers to another file. */
void gputile_guarded_fd_close(struct gputile_guarded_fd *guarded);

#endif
