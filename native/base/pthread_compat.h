/* Functions of POSIX threads that moved from libpthread to libc in glibc 2.34 and got a new version there.
 *
 * Named directly, they would tie the library to that glibc or to libpthread, and it is loaded into every program of a
 * container. They are looked up when they are called: where CUDA is, libpthread is.
 */
#ifndef GPUTILE_PTHREAD_COMPAT_H
#define GPUTILE_PTHREAD_COMPAT_H

#include <pthread.h>
#include <signal.h>
#include <time.h>

/* As without the prefix; ENOSYS where this process has no threads. */
int gputile_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*body)(void *), void *argument);
int gputile_pthread_attr_setstacksize(pthread_attr_t *attributes, size_t bytes);
int gputile_pthread_condattr_setclock(pthread_condattr_t *attributes, clockid_t clock);
int gputile_pthread_sigmask(int how, const sigset_t *set, sigset_t *before);

#endif
