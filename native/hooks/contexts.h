/* The contexts of this process, and what they hold. */
#ifndef GPUTILE_CONTEXTS_H
#define GPUTILE_CONTEXTS_H

#include "base/cuda_types.h"

/* What stands for a context as the owner of what it holds. A destroyed context's address may be another one's before
 * who destroyed it knows, so each has a number of its own. One that was made unseen is its address. */
uint64_t gputile_owner_of(CUcontext context);

/* A child made by fork has none of them. */
void gputile_contexts_in_child(void);

#endif
