/* Symbols of loaded objects, read from their own tables: no dlsym, which this library replaces, and no search order. */
#ifndef GPUTILE_SYMBOLS_H
#define GPUTILE_SYMBOLS_H

/* The address of `symbol` in the loaded object whose file name begins with `object` ("libcuda.so"), else NULL. */
void *gputile_elf_symbol(const char *object, const char *symbol);

#endif
