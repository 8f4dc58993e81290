/* The contexts of this process as owners of what is allocated in them. */
#ifndef GPUTILE_CONTEXT_OWNERS_H
#define GPUTILE_CONTEXT_OWNERS_H

#include <stdint.h>

#include "accounting/allocation_table.h"
#include "base/cuda_types.h"

/* The key of a context in the allocation table. */
uint64_t gputile_context_key(CUcontext context);

/* What stands for a context as the owner of what it holds. A destroyed context's address may be another one's before
 * who destroyed it knows, so each has a number of its own. One that was made unseen is its address. */
uint64_t gputile_context_owner(CUcontext context);

/* Count a new context, and what making it took. */
void gputile_context_add(CUcontext context, int gpu, uint64_t bytes);

/* Give back what an allocation took that is no longer in the table. */
void gputile_release_allocation(const struct gputile_allocation *taken);

/* Give back all that a destroyed context held. Its owner was asked for before it was destroyed; 0 is nobody. */
void gputile_release_owner(uint64_t owner);

#endif
