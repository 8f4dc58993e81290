/* Maps the driver's functions to this library's hooks, and hooks to the driver's own functions. */
#include "hooks/hook_table.h"

#include <stdlib.h>
#include <string.h>

#include "base/driver.h"
#include "base/elf_symbols.h"

/* Only the addresses of these functions are used here. Their parameters are declared where they are defined. */
#define X(name, symbol, since, thread) void symbol(void);
#include "hooks/memory.def"
#undef X
#define X(name, symbol, since, thread, parameters, stream) void symbol(void);
#include "hooks/submit.def"
#undef X

static const struct {
    const char *name, *symbol;
    void (*hook)(void);
    int since;
    bool per_thread;
} row[GPUTILE_ENTRIES] = {
#define X(name, symbol, since, thread) {#name, #symbol, symbol, since, thread},
#include "hooks/memory.def"
#undef X
#define X(name, symbol, since, thread, parameters, stream) {#name, #symbol, symbol, since, thread},
#include "hooks/submit.def"
#undef X
};

static const char *const known[] = {
#include "hooks/known.def"
};

/* Replaces a function that the driver does not have. It may ignore its arguments: in the calling conventions of all
 * processors that CUDA supports, the caller removes them. */
static CUresult missing(void) { return CUDA_ERROR_NOT_FOUND; }
static void *real[GPUTILE_ENTRIES];

void *gputile_real(enum gputile_entry entry) {
    void *found = __atomic_load_n(&real[entry], __ATOMIC_RELAXED);
    if (found) return found;
    found = gputile_driver_symbol(row[entry].symbol);
    if (!found) found = (void *)missing;
    if (found != (void *)missing || gputile_driver_is_loaded()) __atomic_store_n(&real[entry], found, __ATOMIC_RELAXED);
    return found;
}

static bool has_real(int entry) { return gputile_real((enum gputile_entry)entry) != (void *)missing; }

void *gputile_hook_of_symbol(const char *symbol) {
    for (int i = 0; i < GPUTILE_ENTRIES; i++)
        if (!strcmp(row[i].symbol, symbol)) return has_real(i) ? (void *)row[i].hook : NULL;
    return NULL;
}

void *gputile_hook_of_answer(const char *name, void *answer, int version, bool per_thread) {
    int best = -1;
    for (int i = 0; i < GPUTILE_ENTRIES; i++) {
        if (gputile_real((enum gputile_entry)i) == answer) return (void *)row[i].hook;
        if (strcmp(row[i].name, name) || row[i].since > version || row[i].per_thread > per_thread) continue;
        if (best < 0 || row[i].per_thread > row[best].per_thread ||
            (row[i].per_thread == row[best].per_thread && row[i].since > row[best].since))
            best = i;
    }
    if (best < 0) return NULL;
    /* The driver returned a function that it does not export. The hook calls that function. */
    if (!has_real(best)) __atomic_store_n(&real[best], answer, __ATOMIC_RELAXED);
    return (void *)row[best].hook;
}

static int compare(const void *name, const void *element) { return strcmp(name, *(const char *const *)element); }

bool gputile_knows(const char *name) {
    return bsearch(name, known, sizeof known / sizeof *known, sizeof *known, compare) != NULL;
}

bool gputile_is_driver_name(const char *name) {
    return name[0] == 'c' && name[1] == 'u' && name[2] >= 'A' && name[2] <= 'Z';
}

static bool is_unknown(const char *name) {
    return gputile_is_driver_name(name) && !gputile_knows(name) && !gputile_hook_of_symbol(name) &&
           gputile_driver_symbol(name);
}

const char *gputile_unknown_import(void) { return gputile_elf_import(is_unknown); }
