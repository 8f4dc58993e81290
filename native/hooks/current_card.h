/* Which card the calling thread's calls are about. */
#ifndef GPUTILE_CURRENT_CARD_H
#define GPUTILE_CURRENT_CARD_H

#include <stdint.h>

#include "base/cuda_types.h"

/* The card of the current context; CUDA_SUCCESS, else what a function that needs it has to answer. */
CUresult gputile_current_card(int *card);

/* The same, with what stands for the context as the owner of allocations. */
CUresult gputile_current_card_and_owner(int *card, uint64_t *owner);

#endif
