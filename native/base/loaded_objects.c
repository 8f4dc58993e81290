/* Goes through the loaded objects, and keeps forks away meanwhile.
 *
 * dl_iterate_phdr holds a lock of the loader which glibc does not make new in a child (_dl_load_write_lock; it does so
 * with _dl_load_lock). A child of a fork while another thread is inside would wait for that thread, which it does not
 * have, as soon as it goes through the objects itself. So a fork waits until nobody is inside.
 *
 * Counted, and not locked: a thread may come here with the loader's lock, from a program's own callback. Then those
 * inside wait for it, the fork for them, and it for the fork: nobody waits for long, and all go on.
 */
#define _GNU_SOURCE
#include "base/loaded_objects.h"

#include <stdbool.h>
#include <time.h>

#include "base/fork_handlers.h"

enum { MOST_TRIES = 20000, PAUSE_NS = 100000 }; /* two seconds */

static int inside, forking;
static _Thread_local bool forks_here; /* handlers of other libraries may ask for symbols meanwhile */

static void rest(void) { nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL); }

static bool enter(void) {
    __atomic_add_fetch(&inside, 1, __ATOMIC_SEQ_CST);
    if (forks_here || !__atomic_load_n(&forking, __ATOMIC_SEQ_CST)) return true;
    __atomic_sub_fetch(&inside, 1, __ATOMIC_SEQ_CST);
    return false;
}

void gputile_loaded_objects(int (*look)(struct dl_phdr_info *, size_t, void *), void *data) {
    int tries = 0;
    while (!enter() && tries++ < MOST_TRIES) rest();
    if (tries > MOST_TRIES) __atomic_add_fetch(&inside, 1, __ATOMIC_SEQ_CST);
    dl_iterate_phdr(look, data);
    __atomic_sub_fetch(&inside, 1, __ATOMIC_SEQ_CST);
}

static void before_fork(void) {
    forks_here = true;
    __atomic_add_fetch(&forking, 1, __ATOMIC_SEQ_CST);
    for (int tries = 0; tries < MOST_TRIES && __atomic_load_n(&inside, __ATOMIC_SEQ_CST); tries++) rest();
}

static void in_parent(void) {
    __atomic_sub_fetch(&forking, 1, __ATOMIC_SEQ_CST);
    forks_here = false;
}

static void in_child(void) {
    inside = forking = 0;
    forks_here = false;
}

static const struct gputile_fork_handlers handlers = {.order = GPUTILE_FORK_LOADED_OBJECTS,
                                                      .before = before_fork,
                                                      .in_parent = in_parent,
                                                      .in_child = in_child};
static const struct gputile_fork_handlers *const registered GPUTILE_FORK_HANDLERS = &handlers;
