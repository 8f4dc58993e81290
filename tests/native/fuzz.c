/* What the library reads that others wrote, byte by byte: for libFuzzer, and for bytes that a test hands over.
 *
 * With -DSTANDALONE it reads inputs from standard input, each after its length (32 bits, little-endian), and ends
 * without a word if none of them does harm. The sanitizers say what harm is.
 */
#define _GNU_SOURCE
#include <endian.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "accounting/limits.h"
#include "accounting/shared_usage.h"
#include "base/fork_handlers.h"
#include "timeslice/arbiter_link.h"
#include "timeslice/gpu.h"
#include "timeslice/share_file.h"

enum { MOST = 65536 };

static void must(int true_, const char *what) {
    if (true_) return;
    fprintf(stderr, "broken: %s\n", what);
    abort();
}

/* /etc/gputile/allocation/limits */
void fuzz_limits(const uint8_t *data, size_t size) {
    struct gputile_limits limits;
    char *exact = malloc(size ? size : 1); /* so that a sanitizer sees a read past the end */
    memcpy(exact, data, size);
    if (!gputile_limits_parse(exact, size, &limits)) {
        must(limits.count > 0 && limits.count <= GPUTILE_MOST_GPUS,
             "a file that is accepted names a possible number of GPUs");
        for (unsigned i = 0; i < limits.count; i++) {
            must(limits.gpu[i].percent <= 100, "a percentage is at most 100");
            must(memchr(limits.gpu[i].uuid, '\0', sizeof limits.gpu[i].uuid) != NULL, "a UUID ends");
        }
        must(!*limits.timeslice_socket || *limits.timeslice_socket == '/', "the socket's path is absolute");
    }
    free(exact);
}

/* /etc/gputile/allocation/share */
void fuzz_share(const uint8_t *data, size_t size) {
    static const char *const uuids[] = {"GPU-0", "GPU-1"};
    uint64_t shares[2] = {0}, quantum = 0;
    char *text = malloc(size + 1);
    memcpy(text, data, size);
    text[size] = '\0';
    if (timeslice_share_parse(text, 2, uuids, shares, &quantum))
        for (int i = 0; i < 2; i++) must(shares[i] <= TIMESLICE_WHOLE, "a share is at most the whole GPU");
    free(text);
}

/* What comes from the arbiter. */
void fuzz_link(const uint8_t *data, size_t size) {
    struct arbiter_link link;
    struct arbiter_message message;
    int ends[2];
    memset(&link, 0, sizeof link);
    if (size > 32768 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) != 0) return;
    must(write(ends[1], data, size) == (ssize_t)size, "the socket takes it");
    close(ends[1]);
    gputile_guarded_fd_set(&link.socket, ends[0]);
    size_t heard = 0;
    while (link.socket.fd >= 0)
        if (arbiter_link_receive(&link, &message)) must(++heard * 32 <= size, "no more is heard than was said");
}

/* /etc/gputile/usage, which is the container's own to write. */
void fuzz_usage(const uint8_t *data, size_t size) {
    char path[32];
    int file = memfd_create("usage", 0);
    if (file < 0 || ftruncate(file, GPUTILE_USAGE_BYTES) != 0) abort();
    must(pwrite(file, data, size < GPUTILE_USAGE_BYTES ? size : GPUTILE_USAGE_BYTES, 0) >= 0, "the file takes it");
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    if (!gputile_shared_usage_open(path)) {
        uint64_t before = gputile_shared_usage_used(0), limit = (uint64_t)1 << 30;
        if (gputile_shared_usage_reserve(0, 4096, limit)) {
            must(before <= limit - 4096, "what is reserved fits under the limit");
            gputile_shared_usage_return(0, 4096);
        }
        gputile_shared_usage_used(GPUTILE_MOST_GPUS - 1);
    }
    gputile_before_fork(), gputile_after_fork_in_child(); /* forgets the file, as a child does */
    for (int open_still = file; open_still < file + 8; open_still++) close(open_still);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size <= MOST) TARGET(data, size);
    return 0;
}

#ifdef STANDALONE
int main(void) {
    static uint8_t data[MOST];
    uint32_t size;
    while (fread(&size, sizeof size, 1, stdin) == 1) {
        size = le32toh(size);
        must(size <= MOST && fread(data, 1, size, stdin) == size, "the test says how long an input is");
        LLVMFuzzerTestOneInput(data, size);
    }
    return 0;
}
#endif
