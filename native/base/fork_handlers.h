/* The handlers that modules of this library run around fork. Each module registers its own handlers. This header
 * defines their order, because a handler may depend on the handlers of other modules.
 *
 * A module registers its handlers by a pointer in a section of the library, which the linker collects into an array:
 *
 *   static const struct gputile_fork_handlers handlers = {.order = GPUTILE_FORK_POOLS, .in_child = in_child};
 *   static const struct gputile_fork_handlers *const registered GPUTILE_FORK_HANDLERS = &handlers;
 *
 * So all handlers are registered before any code runs. A constructor would be too late, because constructors of other
 * libraries may call the driver earlier.
 *
 * During a fork, the shared usage is locked, and no thread iterates the loaded objects. The driver itself may fork, so
 * it is never called while the shared usage is locked or objects are iterated. Threads that the child does not have
 * may hold other locks. So the child reinitialises these locks, and clears the data that they guard.
 */
#ifndef GPUTILE_FORK_HANDLERS_H
#define GPUTILE_FORK_HANDLERS_H

#include <stdbool.h>

/* `before` is called in this order. `in_parent` and `in_child` are called in reverse order, as by pthread_atfork. */
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
    enum gputile_fork_order order; /* unique among all modules */
    void (*before)(void); /* each of these may be NULL */
    void (*in_parent)(void);
    void (*in_child)(void);
};

#define GPUTILE_FORK_HANDLERS __attribute__((used, section("gputile_fork_handlers")))

/* Install the handlers for all later forks. Returns false if that fails. */
bool gputile_fork_handlers_install(void);

/* The functions that a fork calls. */
void gputile_before_fork(void);
void gputile_after_fork_in_child(void);

#endif
