/* What this process has allocated: which pointer or handle stands for how many bytes on which GPU. */
#ifndef GPUTILE_ALLOCATION_TABLE_H
#define GPUTILE_ALLOCATION_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cuda_types.h"

enum gputile_allocation_kind {
    GPUTILE_LINEAR, /* a device pointer; gone with its context */
    GPUTILE_ARRAY, /* an array or mipmapped array; gone with its context */
    GPUTILE_EXTERNAL, /* imported memory; gone with its context */
    GPUTILE_PHYSICAL, /* a handle of cuMemCreate, referred to by handles and mappings */
    GPUTILE_MAPPING, /* the start of a mapping; its owner is the handle */
    GPUTILE_CONTEXT, /* a context: what making it took, often nothing; referred to by who is attached */
    GPUTILE_HEAP, /* what one of its limits sets aside: the owner + CUlimit */
    GPUTILE_MODULE, /* a module or library; gone with its context */
    GPUTILE_EXEC /* an executable graph: what its allocation nodes ask; nothing is held for it */
};

struct gputile_allocation {
    enum gputile_allocation_kind kind;
    uint64_t key;
    int gpu;
    uint64_t bytes;
    uint64_t owner; /* what stands for the context, or the handle of a mapping; 0: none */
    unsigned references;
};

void gputile_allocation_add(struct gputile_allocation allocation);

/* Drop one reference; with the last one, remove the allocation from the table and return true. */
bool gputile_allocation_take(enum gputile_allocation_kind kind, uint64_t key, struct gputile_allocation *taken);

/* Add a reference; false if there is no such allocation. */
bool gputile_allocation_add_reference(enum gputile_allocation_kind kind, uint64_t key);

bool gputile_allocation_find(enum gputile_allocation_kind kind, uint64_t key, struct gputile_allocation *found);

/* Take any one allocation of an owner, mappings apart. */
bool gputile_allocation_take_of_owner(uint64_t owner, struct gputile_allocation *taken);

#endif
