/* Functions of POSIX threads that moved from libpthread to libc in glibc 2.34, with a new version.
 *
 * Linking with them would require that glibc, or libpthread, in every program of a container. So they are looked up
 * when they are called: a program that uses CUDA has libpthread.
 */
#ifndef GPUTILE_PTHREAD_COMPAT_H
#define GPUTILE_PTHREAD_COMPAT_H

#include <pthread.h>
#include <signal.h>
#include <time.h>

/* Like the functions without the prefix; ENOSYS if this process has no libpthread. */
int gputile_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*body)(void *), void *argument);
int gputile_pthread_attr_setstacksize(pthread_attr_t *attributes, size_t bytes);
int gputile_pthread_condattr_setclock(pthread_condattr_t *attributes, clockid_t clock);
int gputile_pthread_sigmask(int how, const sigset_t *set, sigset_t *before);

#endif
