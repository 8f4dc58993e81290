/* Looks up functions of glibc that this library must not be linked with: those that it replaces, and those that moved
 * from libdl or libpthread to libc in glibc 2.34. */
#ifndef GPUTILE_LIBC_SYMBOLS_H
#define GPUTILE_LIBC_SYMBOLS_H

/* The address of a function in glibc's loaded libraries; NULL if none of them has it. */
void *gputile_libc_symbol(const char *name);

#endif
