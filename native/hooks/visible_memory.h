/* A GPU as the container sees it: with the memory that it was given. */
#ifndef GPUTILE_VISIBLE_MEMORY_H
#define GPUTILE_VISIBLE_MEMORY_H

#include <stdint.h>

/* Bytes: what the container may have of a GPU of `total`, and what it can still get of `available`. */
void gputile_visible_memory(int gpu, uint64_t total, uint64_t available, uint64_t *shown_total, uint64_t *shown_free);

#endif
