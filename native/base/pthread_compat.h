/* Functions of POSIX threads that moved from libpthread to libc in glibc 2.34, with a new symbol version.
 *
 * If this library were linked with them, every program of a container would need glibc 2.34 or libpthread. So each
 * function is looked up when it is called. Programs that use CUDA have libpthread.
 */
#ifndef GPUTILE_PTHREAD_COMPAT_H
#define GPUTILE_PTHREAD_COMPAT_H

#include <pthread.h>
#include <signal.h>
#include <time.h>

/* Like the functions without the prefix. They return ENOSYS if this process has no libpthread. */
int gputile_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*body)(void *), void *argument);
int gputile_pthread_attr_setstacksize(pthread_attr_t *attributes, size_t bytes);
int gputile_pthread_condattr_setclock(pthread_condattr_t *attributes, clockid_t clock);
int gputile_pthread_sigmask(int how, const sigset_t *set, sigset_t *before);

#endif
