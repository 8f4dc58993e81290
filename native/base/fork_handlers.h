/* What the modules of this library do around fork. Each module registers its own handlers, which
 * nobody else calls; here is only in which order they are called, since one module's may rest upon another's.
 *
 * A module registers by a pointer in a section of the library, which the linker collects into one array:
 *
 *   static const struct gputile_fork_handlers handlers = {.order = GPUTILE_FORK_POOLS, .in_child = in_child};
 *   static const struct gputile_fork_handlers *const registered GPUTILE_FORK_HANDLERS = &handlers;
 *
 * So all are there before any code runs. A constructor would not do: those of other libraries may call the driver
 * first.
 *
 * Only the shared usage is locked around a fork, and nobody goes through the loaded objects: neither is so while the
 * driver is called, which may fork itself. All other locks may be a thread's that the child does not have: the child
 * makes them new, and forgets what they guard.
 */
#ifndef GPUTILE_FORK_HANDLERS_H
#define GPUTILE_FORK_HANDLERS_H

#include <stdbool.h>

/* `before` is called in this order, `in_parent` and `in_child` in the opposite one, as pthread_atfork has it. */
enum gputile_fork_order {
    GPUTILE_FORK_INIT,
    GPUTILE_FORK_TIMESLICE,
    GPUTILE_FORK_THREADLESS,
    GPUTILE_FORK_CAPTURES,
    GPUTILE_FORK_KEEPER,
    GPUTILE_FORK_TIMESLICE_GPUS,
    GPUTILE_FORK_OVERHEAD,
    GPUTILE_FORK_CONTEXTS,
    GPUTILE_FORK_CONTEXT_LIMITS,
    GPUTILE_FORK_POOLS,
    GPUTILE_FORK_ALLOCATION_TABLE,
    GPUTILE_FORK_SHARED_USAGE,
    GPUTILE_FORK_LOADED_OBJECTS,
    GPUTILE_FORK_MODULES
};

struct gputile_fork_handlers {
    enum gputile_fork_order order; /* each module has another one */
    void (*before)(void); /* NULL: nothing, as for the others */
    void (*in_parent)(void);
    void (*in_child)(void);
};

#define GPUTILE_FORK_HANDLERS __attribute__((used, section("gputile_fork_handlers")))

/* Have them called around each fork from now on; false if that cannot be. */
bool gputile_fork_handlers_install(void);

/* As a fork calls them. */
void gputile_before_fork(void);
void gputile_after_fork_in_child(void);

#endif
