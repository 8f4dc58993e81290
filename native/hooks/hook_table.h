/* The table of the driver's functions that this library hooks. */
#ifndef GPUTILE_HOOK_TABLE_H
#define GPUTILE_HOOK_TABLE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/cuda_types.h"

#define GPUTILE_EXPORT __attribute__((visibility("default")))
/* The newest CUDA version whose public headers the tables cover. */
enum { GPUTILE_KNOWN_CUDA = 13050 };

/* A symbol's number is the number of its first row in memory.def and submit.def, in this order. */
enum gputile_entry {
#define X(name, symbol, since, thread) GPUTILE_ROW_##name##_##symbol,
#include "hooks/memory.def"
#undef X
#define X(name, symbol, since, thread, parameters, stream) GPUTILE_ROW_##name##_##symbol,
#include "hooks/submit.def"
#undef X
    GPUTILE_ENTRIES
};

/* The driver's own function. If no loaded driver has the function, it is a function that ignores its arguments and
 * returns CUDA_ERROR_NOT_FOUND. */
void *gputile_real(enum gputile_entry entry);
/* Call the driver's own function with the arguments of the hook of the same name. */
#define CALL_REAL(name, symbol, ...) (((__typeof__(&symbol))gputile_real(GPUTILE_ROW_##name##_##symbol))(__VA_ARGS__))

/* This library's hook of a symbol of the driver, or NULL if there is no hook or the driver has no such symbol. */
void *gputile_hook_of_symbol(const char *symbol);

/* The hook of the function `answer`, which the driver returned for a name without suffix, or NULL without a hook. */
void *gputile_hook_of_answer(const char *name, void *answer, int version, bool per_thread);

/* Whether a name, with or without suffix, belongs to the public driver API that this library covers. */
GPUTILE_EXPORT bool gputile_knows(const char *name);

/* An unknown function of the driver with which the program or one of its libraries is linked, or NULL if there is none.
 * The loader has bound it directly to the driver. */
const char *gputile_unknown_import(void);

/* Whether a name has the form of the driver API's names: "cu" and a capital letter. */
bool gputile_is_driver_name(const char *name);

#endif
