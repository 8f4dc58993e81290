/* Parses the limits file, and stores this process's limits. */
#define _GNU_SOURCE
#include "accounting/limits.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

enum { MOST_WORDS = 4, MOST_MIB = 1 << 26 };

/* Split a line of `length` bytes at single blanks. Returns the number of words, or 0 if there are too many. */
static int split(char *line, size_t length, char *word[MOST_WORDS]) {
    int count = 0;
    char *start = line;
    for (size_t i = 0; i <= length; i++) {
        if (i < length && line[i] != ' ') {
            if (line[i] < '!' || line[i] > '~') return 0;
            continue;
        }
        if (&line[i] == start || count == MOST_WORDS) return 0;
        line[i] = '\0';
        word[count++] = start;
        start = &line[i + 1];
    }
    return count;
}

static int number(const char *text, uint64_t most, uint64_t *value) {
    *value = 0;
    if (!*text || strlen(text) > 9) return 0;
    for (; *text; text++) {
        if (*text < '0' || *text > '9') return 0;
        *value = *value * 10 + (uint64_t)(*text - '0');
    }
    return *value <= most;
}

static const char *take_gpu(char *word[MOST_WORDS], struct gputile_limits *limits) {
    struct gputile_gpu *gpu = &limits->gpu[limits->count];
    uint64_t mib, percent;
    if (limits->count == GPUTILE_MOST_GPUS) return "it names too many GPUs";
    if (strlen(word[1]) >= sizeof gpu->uuid) return "a GPU's UUID is too long";
    if (!number(word[2], MOST_MIB, &mib)) return "a GPU's memory is not a number of MiB";
    if (!number(word[3], 100, &percent)) return "a GPU's percent is not a number from 0 to 100";
    for (unsigned i = 0; i < limits->count; i++)
        if (!strcmp(limits->gpu[i].uuid, word[1])) return "it names a GPU twice";
    strcpy(gpu->uuid, word[1]);
    gpu->bytes = mib << 20, gpu->percent = (unsigned)percent;
    limits->count++;
    return NULL;
}

static const char *take(int count, char *word[MOST_WORDS], struct gputile_limits *limits) {
    uint64_t mib;
    if (count == 4 && !strcmp(word[0], GPUTILE_LIMITS_GPU)) return take_gpu(word, limits);
    if (count == 2 && !strcmp(word[0], GPUTILE_LIMITS_OVERHEAD)) {
        if (!number(word[1], MOST_MIB, &mib)) return "the overhead is not a number of MiB";
        limits->overhead_bytes = mib << 20;
        return NULL;
    }
    if (count == 2 && !strcmp(word[0], GPUTILE_LIMITS_SOCKET)) {
        if (strlen(word[1]) >= sizeof limits->timeslice_socket || word[1][0] != '/')
            return "the socket's path is not absolute or too long";
        strcpy(limits->timeslice_socket, word[1]);
        return NULL;
    }
    return "it has an unknown line";
}

const char *gputile_limits_parse(const char *text, size_t length, struct gputile_limits *limits) {
    char copy[GPUTILE_LIMITS_MOST_BYTES], *word[MOST_WORDS];
    memset(limits, 0, sizeof *limits);
    limits->overhead_bytes = (uint64_t)GPUTILE_DEFAULT_OVERHEAD_MIB << 20;
    if (length >= sizeof copy) return "it is too long";
    memcpy(copy, text, length);
    for (size_t at = 0, line = 0; at < length; line++) {
        char *end = memchr(copy + at, '\n', length - at);
        if (!end) return "its last line is incomplete";
        size_t size = (size_t)(end - copy) - at;
        int count = split(copy + at, size, word);
        at += size + 1;
        if (line == 0) {
            if (count != 2 || strcmp(word[0], GPUTILE_LIMITS_NAME)) return "it is not a limits file";
            if (strcmp(word[1], GPUTILE_LIMITS_VERSION)) return "its version is not " GPUTILE_LIMITS_VERSION;
        } else if (count == 1 && !strcmp(word[0], GPUTILE_LIMITS_END)) {
            if (at != length) return "it has lines after its end";
            return limits->count ? NULL : "it names no GPU";
        } else {
            const char *wrong = take(count, word, limits);
            if (wrong) return wrong;
        }
    }
    return "its end is missing";
}

static struct gputile_limits in_force;

const struct gputile_limits *gputile_limits(void) { return &in_force; }

const char *gputile_limits_load(const char *path) {
    char text[GPUTILE_LIMITS_MOST_BYTES];
    size_t length = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return errno == ENOENT ? "it does not exist" : strerror(errno);
    while (length < sizeof text) {
        ssize_t n = read(fd, text + length, sizeof text - length);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            close(fd);
            return n < 0 ? strerror(errno) : gputile_limits_parse(text, length, &in_force);
        }
        length += (size_t)n;
    }
    close(fd);
    return "it is too long";
}
