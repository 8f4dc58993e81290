/* Loads NVML if the program has not loaded it, and never shuts NVML down, because the program may use it. */
#include "accounting/nvml_client.h"

#include <dlfcn.h>
#include <stddef.h>
#include <unistd.h>

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

static bool device_of(const char *uuid, void **device) {
    if (!is_ready()) return false;
    int (*by_uuid)(const char *, void **) = gputile_nvml_symbol("nvmlDeviceGetHandleByUUID");
    return by_uuid && by_uuid(uuid, device) == NVML_SUCCESS;
}

bool gputile_nvml_free(const char *uuid, uint64_t *bytes) {
    struct nvml_memory memory;
    void *device;
    if (!device_of(uuid, &device)) return false;
    int (*ask)(void *, struct nvml_memory *) = gputile_nvml_symbol("nvmlDeviceGetMemoryInfo");
    if (!ask || ask(device, &memory) != NVML_SUCCESS) return false;
    *bytes = memory.free;
    return true;
}

#define UNKNOWN_BYTES (~0ULL) /* NVML_VALUE_NOT_AVAILABLE */
enum { MOST_PROCESSES = 128 };

struct nvml_process {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
};

/* Raise `bytes` to the value of this process in a list of the GPU's processes. */
static bool own_in(const char *symbol, void *device, uint64_t *bytes) {
    struct nvml_process found[2 * MOST_PROCESSES]; /* twice as long, because some drivers have longer elements */
    unsigned count = MOST_PROCESSES, own = (unsigned)getpid();
    int (*list)(void *, unsigned *, struct nvml_process *) = gputile_nvml_symbol(symbol);
    if (!list || list(device, &count, found) != NVML_SUCCESS || count > MOST_PROCESSES) return false;
    for (unsigned i = 0; i < count; i++)
        if (found[i].pid == own && found[i].used != UNKNOWN_BYTES && found[i].used > *bytes) *bytes = found[i].used;
    return true;
}

bool gputile_nvml_own(const char *uuid, uint64_t *bytes) {
    void *device;
    *bytes = 0;
    return device_of(uuid, &device) && own_in("nvmlDeviceGetComputeRunningProcesses_v3", device, bytes) &&
           own_in("nvmlDeviceGetGraphicsRunningProcesses_v3", device, bytes);
}
