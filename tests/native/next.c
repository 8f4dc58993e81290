/* A library that is preloaded after ours and passes getpid on by RTLD_NEXT: it must not find itself, nor us. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/types.h>

pid_t getpid(void) {
    pid_t (*next)(void) = (pid_t (*)(void))dlsym(RTLD_NEXT, "getpid");
    return next == getpid ? -1 : next();
}
