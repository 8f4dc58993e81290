/* Looks up each function when it is called. */
#include "base/pthread_compat.h"

#include <errno.h>

#include "base/libc_symbols.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
/* Sanitizers replace functions of libc. If libc has the function, the sanitizer's version is called. */
#define FUNCTION(name) (gputile_libc_symbol(#name) ? &name : NULL)
#else
#define FUNCTION(name) ((__typeof__(&name))gputile_libc_symbol(#name))
#endif

int gputile_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*body)(void *), void *argument) {
    __typeof__(&pthread_create) create = FUNCTION(pthread_create);
    return create ? create(thread, attributes, body, argument) : ENOSYS;
}

int gputile_pthread_attr_setstacksize(pthread_attr_t *attributes, size_t bytes) {
    __typeof__(&pthread_attr_setstacksize) set = FUNCTION(pthread_attr_setstacksize);
    return set ? set(attributes, bytes) : ENOSYS;
}

int gputile_pthread_condattr_setclock(pthread_condattr_t *attributes, clockid_t clock) {
    __typeof__(&pthread_condattr_setclock) set = FUNCTION(pthread_condattr_setclock);
    return set ? set(attributes, clock) : ENOSYS;
}

int gputile_pthread_sigmask(int how, const sigset_t *set, sigset_t *before) {
    __typeof__(&pthread_sigmask) change = FUNCTION(pthread_sigmask);
    return change ? change(how, set, before) : ENOSYS;
}
