/* Functions of glibc that this library must not be linked with: those that it replaces itself, and those that moved
 * from libdl or libpthread into libc in glibc 2.34. */
#ifndef GPUTILE_LIBC_SYMBOLS_H
#define GPUTILE_LIBC_SYMBOLS_H

/* The address of a function in whichever of glibc's libraries has it; NULL if none of those that are loaded does. */
void *gputile_libc_symbol(const char *name);

#endif
