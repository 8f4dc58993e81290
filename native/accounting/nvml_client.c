/* Loads NVML where the program has not, and never shuts it down: others in this process may use it. */
#include "accounting/nvml_client.h"

#include <dlfcn.h>
#include <stddef.h>

#include "base/elf_symbols.h"
#include "base/libc_symbols.h"

void *gputile_nvml_symbol(const char *symbol) { return gputile_elf_symbol("libnvidia-ml.so", symbol); }

static bool is_ready(void) {
    static int ready;
    if (__atomic_load_n(&ready, __ATOMIC_RELAXED)) return true;
    if (!gputile_nvml_symbol("nvmlInit_v2")) {
        void *(*open_library)(const char *, int) = gputile_libc_symbol("dlopen");
        if (!open_library || !open_library("libnvidia-ml.so.1", RTLD_NOW)) return false;
    }
    int (*initialise)(void) = gputile_nvml_symbol("nvmlInit_v2");
    if (!initialise || initialise() != NVML_SUCCESS) return false;
    __atomic_store_n(&ready, 1, __ATOMIC_RELAXED);
    return true;
}

bool gputile_nvml_free(const char *uuid, uint64_t *bytes) {
    struct nvml_memory memory;
    void *device;
    if (!is_ready()) return false;
    int (*by_uuid)(const char *, void **) = gputile_nvml_symbol("nvmlDeviceGetHandleByUUID");
    int (*ask)(void *, struct nvml_memory *) = gputile_nvml_symbol("nvmlDeviceGetMemoryInfo");
    if (!by_uuid || !ask || by_uuid(uuid, &device) != NVML_SUCCESS || ask(device, &memory) != NVML_SUCCESS)
        return false;
    *bytes = memory.free;
    return true;
}
