/* The allocations of this process: the GPU and the bytes of each pointer or handle. */
#ifndef GPUTILE_ALLOCATION_TABLE_H
#define GPUTILE_ALLOCATION_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cuda_types.h"

enum gputile_allocation_kind {
    GPUTILE_LINEAR, /* a device pointer, freed with its context */
    GPUTILE_ARRAY, /* an array or mipmapped array, freed with its context */
    GPUTILE_EXTERNAL, /* imported memory, freed with its context */
    GPUTILE_PHYSICAL, /* a handle of cuMemCreate, referenced by handles and mappings */
    GPUTILE_MAPPING, /* the start of a mapping, whose owner is the handle */
    GPUTILE_CONTEXT, /* the memory for the creation of a context, often none, referenced by the context's users */
    GPUTILE_HEAP, /* memory that is reserved for a limit of a context. The key is the owner + CUlimit. */
    GPUTILE_MODULE, /* a module or library, freed with its context */
    GPUTILE_EXEC /* an executable graph, with the bytes of its allocation nodes, which are not charged */
};

struct gputile_allocation {
    enum gputile_allocation_kind kind;
    uint64_t key;
    int gpu;
    uint64_t bytes;
    uint64_t owner; /* the owner of the context, or the handle of a mapping, or 0 for no owner */
    unsigned references;
};

void gputile_allocation_add(struct gputile_allocation allocation);

/* Drop a reference. If it was the last one, remove the allocation from the table and return true. */
bool gputile_allocation_take(enum gputile_allocation_kind kind, uint64_t key, struct gputile_allocation *taken);

/* Add a reference. Returns false if the table has no such allocation. */
bool gputile_allocation_add_reference(enum gputile_allocation_kind kind, uint64_t key);

bool gputile_allocation_find(enum gputile_allocation_kind kind, uint64_t key, struct gputile_allocation *found);

/* Remove one of an owner's allocations, but no mapping. */
bool gputile_allocation_take_of_owner(uint64_t owner, struct gputile_allocation *taken);

#endif
