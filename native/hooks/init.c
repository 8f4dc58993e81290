/* Joins the container's allocation when the program first uses a GPU, and again in a forked child. */
#define _GNU_SOURCE
#include "hooks/init.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "accounting/limits.h"
#include "accounting/shared_usage.h"
#include "base/driver.h"
#include "base/fork_handlers.h"
#include "base/log.h"
#include "hooks/hook_table.h"
#include "timeslice/timeslice.h"

/* The node's agent mounts this directory. A container with the mount cannot set another directory in its
 * environment. */
#define ALLOCATION         "/etc/gputile/allocation"
#define USAGE              "/etc/gputile/usage"
/* Without the mount, this variable names a directory with both files, for tests and for `gputile selftest`. */
#define DIRECTORY_VARIABLE "GPUTILE_DIRECTORY"

enum state { UNKNOWN, OPEN, CLOSED };
static enum state state;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static bool shut(const char *path, const char *wrong) {
    gputile_log(
        "no GPU for this process: %s: %s. The node's gputile agent writes this file before the container starts: "
        "delete the pod to recreate it, and see the agent's log if the error persists.",
        path, wrong);
    return false;
}

static bool join(void) {
    static const char *uuids[GPUTILE_MOST_GPUS];
    char limits_path[256] = ALLOCATION "/limits", usage_path[256] = USAGE;
    const char *directory = getenv(DIRECTORY_VARIABLE), *wrong;
    if (directory && access(ALLOCATION, F_OK) != 0) {
        snprintf(limits_path, sizeof limits_path, "%s/limits", directory);
        snprintf(usage_path, sizeof usage_path, "%s/usage", directory);
    }
    /* The handlers are installed first. Otherwise a child that is forked now would share the slot of this process. */
    if (!gputile_fork_handlers_install()) return shut(usage_path, "a child process could not be counted");
    if ((wrong = gputile_limits_load(limits_path))) return shut(limits_path, wrong);
    if ((wrong = gputile_shared_usage_open(usage_path))) return shut(usage_path, wrong);
    const struct gputile_limits *limits = gputile_limits();
    for (unsigned i = 0; i < limits->count; i++) uuids[i] = limits->gpu[i].uuid;
    if (timeslice_start(limits->timeslice_socket, limits->count, uuids) != 0)
        return shut(limits->timeslice_socket, "no turn can be waited for");
    return true;
}

bool gputile_init(void) {
    enum state now = __atomic_load_n(&state, __ATOMIC_ACQUIRE);
    if (now != UNKNOWN) return now == OPEN;
    int cancelling;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancelling); /* a cancelled thread could not unlock the mutex */
    pthread_mutex_lock(&mutex);
    if (state == UNKNOWN) __atomic_store_n(&state, join() ? OPEN : CLOSED, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&mutex);
    pthread_setcancelstate(cancelling, NULL);
    return state == OPEN;
}

bool gputile_init_checked(void) {
    static bool said;
    if (!gputile_init()) return false;
    const char *import = gputile_unknown_import();
    if (!import) return true;
    if (!__atomic_exchange_n(&said, true, __ATOMIC_RELAXED))
        gputile_log("no GPU for this process: it is linked with %s, and gputile does not know whether that function "
                    "allocates GPU memory. A newer gputile may support it.",
                    import);
    return false;
}

GPUTILE_EXPORT CUresult cuInit(unsigned flags) {
    gputile_pin_driver();
    return gputile_init_checked() ? CALL_REAL(cuInit, cuInit, flags) : CUDA_ERROR_NO_DEVICE;
}

static void in_child(void) {
    pthread_mutex_init(&mutex, NULL);
    if (state == OPEN) state = UNKNOWN; /* the child joins the allocation as a separate process */
}

static const struct gputile_fork_handlers handlers = {.order = GPUTILE_FORK_INIT, .in_child = in_child};
static const struct gputile_fork_handlers *const registered GPUTILE_FORK_HANDLERS = &handlers;
