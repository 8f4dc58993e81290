/* Starts detached threads with a small stack and all signals blocked. */
#define _GNU_SOURCE
#include "timeslice/threads.h"

#include <signal.h>
#include <stddef.h>

#include "base/pthread_compat.h"

#define STACK ((size_t)1 << 20)

bool timeslice_start_thread(void *(*body)(void *), void *argument) {
    pthread_attr_t attributes;
    pthread_t thread;
    sigset_t all, before;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    gputile_pthread_attr_setstacksize(&attributes, STACK);
    sigfillset(&all); /* the application's threads handle signals */
    gputile_pthread_sigmask(SIG_SETMASK, &all, &before);
    bool made = gputile_pthread_create(&thread, &attributes, body, argument) == 0;
    gputile_pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return made;
}
