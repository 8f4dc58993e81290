/* Reads and parses the file, and uses only a complete file of this version. */
#define _GNU_SOURCE
#include "timeslice/share_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "timeslice/gpu.h"

enum { MOST_BYTES = 4096, MOST_QUANTUM_US = 10000000 };
#define UNKNOWN_SHARE   (TIMESLICE_WHOLE / 16)
#define UNKNOWN_QUANTUM (30 * TIMESLICE_MS)

static bool number(const char *text, uint64_t most, uint64_t *value) {
    *value = 0;
    if (!text || !*text || strlen(text) > 9) return false;
    for (; *text; text++) {
        if (*text < '0' || *text > '9') return false;
        *value = *value * 10 + (uint64_t)(*text - '0');
    }
    return *value > 0 && *value <= most;
}

bool timeslice_share_parse(char *text, unsigned count, const char *const *uuids, uint64_t *shares, uint64_t *quantum) {
    char *lines, *words, *line = strtok_r(text, "\n", &lines);
    if (!line || strcmp(line, GPUTILE_SHARE_FIRST_LINE)) return false;
    while ((line = strtok_r(NULL, "\n", &lines))) {
        char *word = strtok_r(line, " ", &words), *first = strtok_r(NULL, " ", &words),
             *second = strtok_r(NULL, " ", &words);
        uint64_t value;
        if (!word) return false;
        if (!strcmp(word, GPUTILE_SHARE_END)) return !first && !strtok_r(NULL, "\n", &lines);
        if (!strcmp(word, GPUTILE_SHARE_QUANTUM)) {
            if (!number(first, MOST_QUANTUM_US, &value) || second) return false;
            *quantum = value * 1000;
        } else if (!strcmp(word, GPUTILE_SHARE_GPU)) {
            if (!first || !number(second, TIMESLICE_WHOLE, &value) || strtok_r(NULL, " ", &words)) return false;
            for (unsigned i = 0; i < count; i++)
                if (!strcmp(uuids[i], first)) shares[i] = value;
        } else {
            return false;
        }
    }
    return false;
}

void timeslice_share_read(const char *socket_path, unsigned count, const char *const *uuids, uint64_t *shares,
                          uint64_t *quantum) {
    char path[128], text[MOST_BYTES];
    const char *slash = strrchr(socket_path, '/');
    uint64_t found[GPUTILE_MOST_GPUS], found_quantum = UNKNOWN_QUANTUM;
    ssize_t size = -1;
    for (unsigned i = 0; i < count; i++) shares[i] = found[i] = UNKNOWN_SHARE;
    *quantum = UNKNOWN_QUANTUM;
    snprintf(path, sizeof path, "%.*s/share", slash ? (int)(slash - socket_path) : 0, socket_path);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        size = read(fd, text, sizeof text - 1);
        close(fd);
    }
    if (size < 0) return;
    text[size] = '\0';
    if (strlen(text) != (size_t)size || !timeslice_share_parse(text, count, uuids, found, &found_quantum)) return;
    memcpy(shares, found, count * sizeof *shares);
    *quantum = found_quantum;
}
