/* Symbols of loaded objects, read from the objects' tables, because this library replaces dlsym. */
#ifndef GPUTILE_ELF_SYMBOLS_H
#define GPUTILE_ELF_SYMBOLS_H

#include <stdbool.h>

/* The address of `symbol` in the loaded object whose file name begins with `object` ("libcuda.so"), or NULL. */
void *gputile_elf_symbol(const char *object, const char *symbol);

/* A function that a loaded object imports and for which `suspect` returns true, or NULL if there is none. Nothing is
 * read if no object was loaded since the last call. */
const char *gputile_elf_import(bool (*suspect)(const char *name));

#endif
