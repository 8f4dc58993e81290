/* Iterates over the loaded objects, and delays forks in the meantime.
 *
 * dl_iterate_phdr holds a lock of the loader that glibc does not reinitialise in a forked child (_dl_load_write_lock,
 * unlike _dl_load_lock). If a process forked while a thread iterates, the child's first iteration would wait forever
 * for this thread, which the child does not have. So a fork waits until no thread iterates.
 *
 * The iterating threads are counted without a lock. A thread may get here while it holds the loader's lock, from a
 * program's own callback. Then the iterating threads wait for this thread, the fork waits for them, and this thread
 * waits for the fork. So each of these waits has a time limit.
 */
#define _GNU_SOURCE
#include "base/loaded_objects.h"

#include <stdbool.h>
#include <time.h>

#include "base/fork_handlers.h"

enum { MOST_TRIES = 20000, PAUSE_NS = 100000 }; /* two seconds */

static int inside, forking;
static _Thread_local bool forks_here; /* handlers of other libraries may look up symbols during the fork */

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
