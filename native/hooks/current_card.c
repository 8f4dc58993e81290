/* Asks the driver for the device and the context that are current in the calling thread. */
#include "hooks/current_card.h"

#include <stddef.h>

#include "accounting/cards.h"
#include "accounting/context_owners.h"
#include "base/driver.h"
#include "hooks/init.h"

CUresult gputile_current_card(int *card) {
    CUdevice device;
    if (!gputile_init()) return CUDA_ERROR_NO_DEVICE;
    if (!gputile_driver()->cuCtxGetDevice) return CUDA_ERROR_NOT_INITIALIZED;
    CUresult result = gputile_driver()->cuCtxGetDevice(&device);
    if (result != CUDA_SUCCESS) return result;
    *card = gputile_card_of_device(device);
    return *card < 0 ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS;
}

CUresult gputile_current_card_and_owner(int *card, uint64_t *owner) {
    CUcontext current = NULL;
    CUresult result = gputile_current_card(card);
    if (result == CUDA_SUCCESS) result = gputile_driver()->cuCtxGetCurrent(&current);
    *owner = gputile_context_owner(current);
    return result;
}
