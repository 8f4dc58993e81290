/* Which card of the limits file a device of this process is: the process may see them in any order. */
#ifndef GPUTILE_CARDS_H
#define GPUTILE_CARDS_H

#include "base/cuda_types.h"

/* The card of a device, -1 if the limits name it not. */
int gputile_card_of_device(CUdevice device);

/* The card with a UUID ("GPU-..."), -1 if the limits name it not. */
int gputile_card_of_uuid(const char *uuid);

/* The card of the current context; CUDA_SUCCESS, else what a function that needs it has to answer. */
CUresult gputile_current_card(int *card);

/* The same, with what stands for the context as the owner of allocations. */
CUresult gputile_current(int *card, uint64_t *owner);

#endif
