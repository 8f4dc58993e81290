/* Calls the registered handlers in the order that the header defines. */
#include "base/fork_handlers.h"

#include <pthread.h>
#include <stddef.h>

/* The start and end of the array. The linker derives these names from the name of the section. */
extern const struct gputile_fork_handlers *const __start_gputile_fork_handlers[] __attribute__((visibility("hidden")));
extern const struct gputile_fork_handlers *const __stop_gputile_fork_handlers[] __attribute__((visibility("hidden")));

static const struct gputile_fork_handlers *of_order(int order) {
    for (const struct gputile_fork_handlers *const *at = __start_gputile_fork_handlers;
         at < __stop_gputile_fork_handlers; at++)
        if ((int)(*at)->order == order) return *at;
    return NULL;
}

void gputile_before_fork(void) {
    for (int order = 0; order < GPUTILE_FORK_MODULES; order++) {
        const struct gputile_fork_handlers *handlers = of_order(order);
        if (handlers && handlers->before) handlers->before();
    }
}

static void in_parent(void) {
    for (int order = GPUTILE_FORK_MODULES - 1; order >= 0; order--) {
        const struct gputile_fork_handlers *handlers = of_order(order);
        if (handlers && handlers->in_parent) handlers->in_parent();
    }
}

void gputile_after_fork_in_child(void) {
    for (int order = GPUTILE_FORK_MODULES - 1; order >= 0; order--) {
        const struct gputile_fork_handlers *handlers = of_order(order);
        if (handlers && handlers->in_child) handlers->in_child();
    }
}

bool gputile_fork_handlers_install(void) {
    static bool installed;
    if (!installed) installed = pthread_atfork(gputile_before_fork, in_parent, gputile_after_fork_in_child) == 0;
    return installed;
}
