/* Iterates over the loaded objects, and prevents forks in the meantime. */
#ifndef GPUTILE_LOADED_OBJECTS_H
#define GPUTILE_LOADED_OBJECTS_H

#include <link.h>
#include <stddef.h>

/* Like dl_iterate_phdr. */
void gputile_loaded_objects(int (*look)(struct dl_phdr_info *, size_t, void *), void *data);

#endif
