/* Which card of the limits file a device of this process is: the process may see them in any order. */
#ifndef GPUTILE_CARDS_H
#define GPUTILE_CARDS_H

#include "base/cuda_types.h"

/* The card of a device, -1 if the limits name it not. */
int gputile_card_of_device(CUdevice device);

/* The card with a UUID ("GPU-..."), -1 if the limits name it not. */
int gputile_card_of_uuid(const char *uuid);

#endif
