/* NVML's memory calls, which nvidia-smi and monitors ask, and our own question to it. Types as in the public nvml.h. */
#include "accounting/cards.h"
#include "base/elf_symbols.h"
#include "hooks/hook_table.h"
#include "hooks/init.h"
#include "hooks/nvml.h"
#include "accounting/overhead.h"
#include "hooks/visible_memory.h"

#include <string.h>

enum { NVML_SUCCESS = 0, NVML_UNINITIALIZED = 1, NVML_UNKNOWN_ERROR = 999, RTLD_NOW_FLAG = 2 };

struct memory { unsigned long long total, free, used; };
struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };

static void *real(const char *symbol) { return gputile_elf_symbol("libnvidia-ml.so", symbol); }

static int card_of(void *device) {
    int (*uuid_of)(void *, char *, unsigned) = real("nvmlDeviceGetUUID");
    char uuid[96];
    if (!gputile_init() || !uuid_of || uuid_of(device, uuid, sizeof uuid) != NVML_SUCCESS) return -1;
    return gputile_card_of_uuid(uuid);
}

GPUTILE_EXPORT int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory) {
    int (*ask)(void *, struct memory *) = real("nvmlDeviceGetMemoryInfo");
    uint64_t total, available;
    int result = ask ? ask(device, memory) : NVML_UNINITIALIZED, card;
    if (result != NVML_SUCCESS || (card = card_of(device)) < 0) return result;
    gputile_visible_memory(card, memory->total, memory->free, &total, &available);
    *memory = (struct memory){total, available, total - available};
    return NVML_SUCCESS;
}

GPUTILE_EXPORT int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory_v2 *memory) {
    int (*ask)(void *, struct memory_v2 *) = real("nvmlDeviceGetMemoryInfo_v2");
    uint64_t total, available;
    int result = ask ? ask(device, memory) : NVML_UNINITIALIZED, card;
    if (result != NVML_SUCCESS || (card = card_of(device)) < 0) return result;
    gputile_visible_memory(card, memory->total, memory->free, &total, &available);
    memory->total = total, memory->reserved = 0, memory->free = available, memory->used = total - available;
    return NVML_SUCCESS;
}

static int version_by(const char *symbol, int *version) {
    int (*ask)(int *) = real(symbol);
    int result = ask ? ask(version) : NVML_UNINITIALIZED;
    if (result == NVML_SUCCESS && *version > GPUTILE_KNOWN_CUDA) *version = GPUTILE_KNOWN_CUDA;
    return result;
}

/* As cuDriverGetVersion has it. */
GPUTILE_EXPORT int nvmlSystemGetCudaDriverVersion(int *version) { return version_by(__func__, version); }

GPUTILE_EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *version) { return version_by(__func__, version); }

void *gputile_nvml_hook(const char *symbol) {
    if (!strcmp(symbol, "nvmlDeviceGetMemoryInfo")) return real(symbol) ? (void *)nvmlDeviceGetMemoryInfo : NULL;
    if (!strcmp(symbol, "nvmlDeviceGetMemoryInfo_v2")) return real(symbol) ? (void *)nvmlDeviceGetMemoryInfo_v2 : NULL;
    if (!strcmp(symbol, "nvmlSystemGetCudaDriverVersion")) return real(symbol) ? (void *)nvmlSystemGetCudaDriverVersion : NULL;
    if (!strcmp(symbol, "nvmlSystemGetCudaDriverVersion_v2")) return real(symbol) ? (void *)nvmlSystemGetCudaDriverVersion_v2 : NULL;
    return NULL;
}

int gputile_nvml_free(const char *uuid, uint64_t *bytes) {
    static int ready; /* initialised, and never shut down: others in this process may use it */
    void *(*open_library)(const char *, int) = gputile_elf_symbol("libc.so", "dlopen"), *device;
    struct memory memory;
    if (!open_library) open_library = gputile_elf_symbol("libdl.so", "dlopen");
    if (!__atomic_load_n(&ready, __ATOMIC_RELAXED)) {
        if (!real("nvmlInit_v2") && (!open_library || !open_library("libnvidia-ml.so.1", RTLD_NOW_FLAG))) return 0;
        int (*initialise)(void) = real("nvmlInit_v2");
        if (!initialise || initialise() != NVML_SUCCESS) return 0;
        __atomic_store_n(&ready, 1, __ATOMIC_RELAXED);
    }
    int (*by_uuid)(const char *, void **) = real("nvmlDeviceGetHandleByUUID");
    int (*ask)(void *, struct memory *) = real("nvmlDeviceGetMemoryInfo");
    if (!by_uuid || !ask || by_uuid(uuid, &device) != NVML_SUCCESS || ask(device, &memory) != NVML_SUCCESS) return 0;
    *bytes = memory.free;
    return 1;
}
