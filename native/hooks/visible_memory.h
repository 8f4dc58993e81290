/* The memory of a GPU as the container sees it, which is the container's limit. */
#ifndef GPUTILE_VISIBLE_MEMORY_H
#define GPUTILE_VISIBLE_MEMORY_H

#include <stdint.h>

/* The total and the free bytes that a container sees of a GPU. The GPU has `total` bytes, and `available` are free. */
void gputile_visible_memory(int gpu, uint64_t total, uint64_t available, uint64_t *shown_total, uint64_t *shown_free);

#endif
