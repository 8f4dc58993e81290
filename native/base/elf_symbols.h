/* Symbols of loaded objects, read from their own tables: no dlsym, which this library replaces, and no search order. */
#ifndef GPUTILE_ELF_SYMBOLS_H
#define GPUTILE_ELF_SYMBOLS_H

#include <stdbool.h>

/* The address of `symbol` in the loaded object whose file name begins with `object` ("libcuda.so"), else NULL. */
void *gputile_elf_symbol(const char *object, const char *symbol);

/* A function that some loaded object is linked with, and that is `suspect`, else NULL. Objects that were looked at
 * before are looked at again only after another one was loaded. */
const char *gputile_elf_import(bool (*suspect)(const char *name));

#endif
