/* The contexts of this process, as owners of the memory that is allocated in them. */
#ifndef GPUTILE_CONTEXT_OWNERS_H
#define GPUTILE_CONTEXT_OWNERS_H

#include <stdint.h>

#include "accounting/allocation_table.h"
#include "base/cuda_types.h"

/* The key of a context in the allocation table. */
uint64_t gputile_context_key(CUcontext context);

/* The number of a context as an owner of memory. An address cannot serve: it may be reused for another context before
 * cuCtxDestroy has returned. The number of a context that was created without this library is its address. */
uint64_t gputile_context_owner(CUcontext context);

/* Add a new context, with the memory that its creation took. */
void gputile_context_add(CUcontext context, int gpu, uint64_t bytes);

/* Release the memory of an allocation that was removed from the table. */
void gputile_release_allocation(const struct gputile_allocation *taken);

/* Release all memory of a destroyed context. Its owner must be looked up before it is destroyed; 0: no owner. */
void gputile_release_owner(uint64_t owner);

#endif
