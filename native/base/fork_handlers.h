/* The handlers that modules of this library run around fork. Each module registers its own; this header defines their
 * order, since a handler may depend on those of other modules.
 *
 * A module registers its handlers by a pointer in a section of the library, which the linker collects into an array:
 *
 *   static const struct gputile_fork_handlers handlers = {.order = GPUTILE_FORK_POOLS, .in_child = in_child};
 *   static const struct gputile_fork_handlers *const registered GPUTILE_FORK_HANDLERS = &handlers;
 *
 * So all are registered before any code runs. A constructor would be too late: constructors of other libraries may call
 * the driver before it.
 *
 * During a fork only the shared usage is locked, and no thread iterates over the loaded objects. Neither is the case
 * while the driver is called, since the driver may fork itself. Other locks may be held by threads that the child does
 * not have, so the child reinitialises them and clears the data that they guard.
 */
#ifndef GPUTILE_FORK_HANDLERS_H
#define GPUTILE_FORK_HANDLERS_H

#include <stdbool.h>

/* `before` is called in this order, `in_parent` and `in_child` in reverse order, as for pthread_atfork. */
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
    enum gputile_fork_order order; /* unique */
    void (*before)(void); /* each of these may be NULL */
    void (*in_parent)(void);
    void (*in_child)(void);
};

#define GPUTILE_FORK_HANDLERS __attribute__((used, section("gputile_fork_handlers")))

/* Install the handlers for all following forks; false if that fails. */
bool gputile_fork_handlers_install(void);

/* What a fork calls. */
void gputile_before_fork(void);
void gputile_after_fork_in_child(void);

#endif
