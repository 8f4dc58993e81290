/* The driver's private tables, which contain functions without names. Only NVIDIA knows their purpose.
 *
 * The CUDA runtime needs these tables, and each release may need new ones. So programs get all tables. Memory that is
 * allocated through a table is not counted. So a message names each table that is not publicly known.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "hooks/hook_table.h"

enum { UUID_TEXT = 37, MOST_NAMED = 32 };

static const char *const known[] = {
#define X(name, uuid) uuid,
#include "hooks/export_tables.def"
#undef X
};

static bool is_known(const char *uuid) {
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(known[i], uuid)) return true;
    return false;
}

/* Whether this is the first request in this process. It may be the first for two threads at the same time. */
static bool is_first(const char *uuid) {
    static const char *named[MOST_NAMED];
    for (int i = 0; i < MOST_NAMED; i++) {
        const char *taken = __atomic_load_n(&named[i], __ATOMIC_ACQUIRE), *none = NULL;
        if (taken && !strcmp(taken, uuid)) return false;
        if (taken) continue;
        char *copy = strdup(uuid);
        if (copy && __atomic_compare_exchange_n(&named[i], &none, copy, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
            return true;
        free(copy);
        return copy != NULL;
    }
    return false;
}

static void name_unknown(const CUuuid *id) {
    char text[UUID_TEXT];
    int length = 0;
    for (int i = 0; i < 16; i++)
        length += snprintf(text + length, sizeof text - (size_t)length,
                           i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", (unsigned char)id->bytes[i]);
    if (is_known(text) || !is_first(text)) return;
    gputile_log(
        "the program uses a private table of the driver that gputile does not know, %s: GPU memory that is allocated "
        "through it is not counted.",
        text);
}

GPUTILE_EXPORT CUresult cuGetExportTable(const void **table, const CUuuid *id) {
    CUresult result = CALL_REAL(cuGetExportTable, cuGetExportTable, table, id);
    if (result == CUDA_SUCCESS && id) name_unknown(id);
    return result;
}
