/* The table of the driver's functions that this library stands before, and the driver's own behind them. */
#ifndef GPUTILE_HOOK_TABLE_H
#define GPUTILE_HOOK_TABLE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/cuda_types.h"

#define GPUTILE_EXPORT __attribute__((visibility("default")))
/* The newest CUDA version whose public headers the tables were made from. */
enum { GPUTILE_KNOWN_CUDA = 13050 };

/* A symbol has the number of its first row in memory.def, then submit.def. */
enum gputile_entry {
#define X(name, symbol, since, thread) GPUTILE_ROW_##name##_##symbol,
#include "hooks/memory.def"
#undef X
#define X(name, symbol, since, thread, parameters, stream) GPUTILE_ROW_##name##_##symbol,
#include "hooks/submit.def"
#undef X
    GPUTILE_ENTRIES
};

/* The driver's own function. Where no driver is loaded, or it has none of that name: one that takes any arguments, which
 * it leaves alone, and answers CUDA_ERROR_NOT_FOUND. */
void *gputile_real(enum gputile_entry entry);
/* Call it with the arguments of the hook of the same name. */
#define CALL_REAL(name, symbol, ...) (((__typeof__(&symbol))gputile_real(GPUTILE_ROW_##name##_##symbol))(__VA_ARGS__))

/* The function of this library in place of the driver's symbol; NULL: it stands before none of that name, or the
 * driver has none. */
void *gputile_hook_of_symbol(const char *symbol);

/* The function in place of what the driver answered for a name without suffix; NULL: none is needed. */
void *gputile_hook_of_answer(const char *name, void *answer, int version, bool per_thread);

/* Whether a name, with or without suffix, is of the public driver API as far as this library was made for it. */
GPUTILE_EXPORT bool gputile_knows(const char *name);

/* A function of the loaded driver that is not known, and that the program or one of its libraries is linked with: the
 * loader has bound it to the driver. NULL: there is none. */
const char *gputile_unknown_import(void);

/* Whether a name is one that the driver API could have: "cu" and a capital. */
bool gputile_is_driver_name(const char *name);

#endif
