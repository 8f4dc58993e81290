/* Finds the loaded libcuda.so.1 and its functions, and keeps it loaded. */
#define _GNU_SOURCE
#include "base/driver.h"

#include <dlfcn.h>

#include "base/elf_symbols.h"
#include "base/libc_symbols.h"

void *gputile_driver_symbol(const char *symbol) { return gputile_elf_symbol("libcuda.so", symbol); }

bool gputile_driver_is_loaded(void) { return gputile_driver_symbol("cuInit") != NULL; }

void gputile_pin_driver(void) {
    static int pinned;
    if (__atomic_load_n(&pinned, __ATOMIC_RELAXED) || !gputile_driver_is_loaded()) return;
    void *(*open_library)(const char *, int) = gputile_libc_symbol("dlopen");
    char *(*last_error)(void) = gputile_libc_symbol("dlerror");
    __atomic_store_n(&pinned, 1, __ATOMIC_RELAXED);
    /* Without this, the program's next dlerror would return this error. */
    if (open_library && !open_library("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE) && last_error)
        last_error();
}

static void set_once(void **field, void *value) {
    void *none = NULL;
    if (value && !__atomic_load_n(field, __ATOMIC_ACQUIRE))
        __atomic_compare_exchange_n(field, &none, value, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

const struct gputile_driver *gputile_driver(void) {
    static struct gputile_driver driver;
    static int loaded;
    if (__atomic_load_n(&loaded, __ATOMIC_ACQUIRE) || !gputile_driver_is_loaded()) return &driver;
    /* Two threads may get here at the same time. A field is written only once, because other threads may read it. */
#define X(field, symbol, parameters) set_once((void **)&driver.field, gputile_driver_symbol(symbol));
    GPUTILE_DRIVER_FUNCTIONS(X)
#undef X
    __atomic_store_n(&loaded, 1, __ATOMIC_RELEASE);
    return &driver;
}
