#define _GNU_SOURCE
#include "owned.h"

#include <sys/syscall.h>
#include <unistd.h>

/* fstat has a new symbol since glibc 2.33; device and inode are the first two words on 64-bit machines. */
static bool file_of(int fd, struct owned *file) {
    struct stat_words {
        unsigned long words[32];
    } status = {{0}};
    if (syscall(SYS_fstat, fd, &status) != 0) return false;
    file->device = status.words[0], file->inode = status.words[1];
    return true;
}

void gputile_own(struct owned *owned, int fd) {
    owned->device = owned->inode = 0;
    owned->fd = fd >= 0 && file_of(fd, owned) ? fd : -1;
}

bool gputile_owns(const struct owned *owned) {
    struct owned file = GPUTILE_OWNS_NOTHING;
    return owned->fd >= 0 && file_of(owned->fd, &file) && file.device == owned->device && file.inode == owned->inode;
}

void gputile_disown(struct owned *owned) {
    int fd = owned->fd;
    bool ours = gputile_owns(owned);
    owned->fd = -1; /* before its number can be another's: a child made by fork closes it as well */
    if (ours) close(fd);
}
