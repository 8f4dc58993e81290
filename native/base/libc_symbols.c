/* Searches libc, and also libdl and libpthread, which had some of the functions until glibc 2.34. */
#include "base/libc_symbols.h"

#include <stddef.h>

#include "base/elf_symbols.h"

void *gputile_libc_symbol(const char *name) {
    static const char *const libraries[] = {"libc.so.6", "libdl.so.2", "libpthread.so.0"};
    for (size_t i = 0; i < sizeof libraries / sizeof *libraries; i++) {
        void *found = gputile_elf_symbol(libraries[i], name);
        if (found) return found;
    }
    return NULL;
}
