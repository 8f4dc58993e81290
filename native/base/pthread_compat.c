#include "base/pthread_compat.h"

#include <errno.h>

#include "base/elf_symbols.h"

static void *look(const char *name) {
    void *found = gputile_elf_symbol("libc.so.6", name);
    return found ? found : gputile_elf_symbol("libpthread.so.0", name);
}

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__) /* which put their own before libc's */
#define LATE(name, ...) return look(#name) ? name(__VA_ARGS__) : ENOSYS;
#else
#define LATE(name, ...)                                       \
    __typeof__(&name) found = (__typeof__(&name))look(#name); \
    return found ? found(__VA_ARGS__) : ENOSYS;
#endif

int gputile_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*body)(void *), void *argument) {
    LATE(pthread_create, thread, attributes, body, argument)
}

int gputile_pthread_attr_setstacksize(pthread_attr_t *attributes, size_t bytes) {
    LATE(pthread_attr_setstacksize, attributes, bytes)
}

int gputile_pthread_condattr_setclock(pthread_condattr_t *attributes, clockid_t clock) {
    LATE(pthread_condattr_setclock, attributes, clock)
}

int gputile_pthread_sigmask(int how, const sigset_t *set, sigset_t *before) {
    LATE(pthread_sigmask, how, set, before)
}
