/* Recognises a reused descriptor number by the file that it refers to. */
#define _GNU_SOURCE
#include "base/guarded_fd.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* fstat has a new symbol since glibc 2.33. Device and inode are the first two words on 64-bit machines. */
static bool file_of(int fd, struct gputile_guarded_fd *file) {
    struct stat_words {
        unsigned long words[32];
    } status = {{0}};
    if (syscall(SYS_fstat, fd, &status) != 0) return false;
    file->device = status.words[0], file->inode = status.words[1];
    return true;
}

/* The output of a program that is started without standard streams goes to the descriptors with these numbers. */
static int beyond_standard_streams(int fd) {
    if (fd < 0 || fd > STDERR_FILENO) return fd;
    int moved = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    close(fd);
    return moved;
}

void gputile_guarded_fd_set(struct gputile_guarded_fd *guarded, int fd) {
    fd = beyond_standard_streams(fd);
    guarded->device = guarded->inode = 0;
    guarded->fd = fd >= 0 && file_of(fd, guarded) ? fd : -1;
}

bool gputile_guarded_fd_is_ours(const struct gputile_guarded_fd *guarded) {
    struct gputile_guarded_fd file = GPUTILE_GUARDED_FD_NONE;
    return guarded->fd >= 0 && file_of(guarded->fd, &file) && file.device == guarded->device &&
           file.inode == guarded->inode;
}

void gputile_guarded_fd_close(struct gputile_guarded_fd *guarded) {
    int fd = guarded->fd;
    bool ours = gputile_guarded_fd_is_ours(guarded);
    guarded->fd = -1; /* before the number can be reused, because a forked child closes the descriptor as well */
    if (ours) close(fd);
}
