/* Numbers contexts, and removes the allocations of destroyed contexts from the table. */
#include "accounting/context_owners.h"

#include "accounting/overhead.h"
#include "accounting/pools.h"
#include "accounting/reservation.h"

uint64_t gputile_context_key(CUcontext context) { return (uint64_t)(uintptr_t)context; }

uint64_t gputile_context_owner(CUcontext context) {
    struct gputile_allocation held;
    return gputile_allocation_find(GPUTILE_CONTEXT, gputile_context_key(context), &held) ? held.owner
                                                                                         : gputile_context_key(context);
}

/* No address has the highest bit set. The lowest bits are for a CUlimit. */
static uint64_t new_owner(void) {
    static uint64_t last;
    return (uint64_t)1 << 63 | __atomic_add_fetch(&last, 256, __ATOMIC_RELAXED);
}

void gputile_context_add(CUcontext context, int gpu, uint64_t bytes) {
    gputile_allocation_add(
        (struct gputile_allocation){GPUTILE_CONTEXT, gputile_context_key(context), gpu, bytes, new_owner(), 1});
}

void gputile_release_allocation(const struct gputile_allocation *taken) {
    if (!taken->bytes) return;
    if (taken->kind == GPUTILE_CONTEXT || taken->kind == GPUTILE_MODULE)
        gputile_overhead_give_back(taken->gpu, taken->bytes);
    else gputile_give_back(taken->gpu, taken->bytes);
}

void gputile_release_owner(uint64_t owner) {
    struct gputile_allocation taken;
    if (!owner) return;
    while (gputile_allocation_take_of_owner(owner, &taken)) gputile_release_allocation(&taken);
    gputile_pools_settle();
}
