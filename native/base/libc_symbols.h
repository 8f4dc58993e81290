/* Looks up functions of glibc with which this library must not be linked. These are the functions that it replaces, and
 * the functions that moved from libdl or libpthread to libc in glibc 2.34. */
#ifndef GPUTILE_LIBC_SYMBOLS_H
#define GPUTILE_LIBC_SYMBOLS_H

/* The address of a function in glibc's loaded libraries, or NULL if no library has it. */
void *gputile_libc_symbol(const char *name);

#endif
