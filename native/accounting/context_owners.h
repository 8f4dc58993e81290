/* The contexts of this process, as owners of the memory that is allocated in them. */
#ifndef GPUTILE_CONTEXT_OWNERS_H
#define GPUTILE_CONTEXT_OWNERS_H

#include <stdint.h>

#include "accounting/allocation_table.h"
#include "base/cuda_types.h"

/* The key of a context in the allocation table. */
uint64_t gputile_context_key(CUcontext context);

/* The number of a context as an owner of memory. The context's address cannot be this number, because the driver may
 * use it for another context before cuCtxDestroy has returned. A context that was created without this library has its
 * address as its number. */
uint64_t gputile_context_owner(CUcontext context);

/* Add a new context, with the memory that its creation took. */
void gputile_context_add(CUcontext context, int gpu, uint64_t bytes);

/* Release the memory of an allocation that was removed from the table. */
void gputile_release_allocation(const struct gputile_allocation *taken);

/* Release all memory of a destroyed context. The caller must look up the owner before it destroys the context. The
 * owner is 0 if the context has none. */
void gputile_release_owner(uint64_t owner);

#endif
