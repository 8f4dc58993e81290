/* Answers the queries of nvidia-smi and of monitors to NVML for memory and for the CUDA version. */
#include "hooks/nvml.h"

#include <string.h>

#include "accounting/gpus.h"
#include "accounting/nvml_client.h"
#include "hooks/hook_table.h"
#include "hooks/init.h"
#include "hooks/visible_memory.h"

struct nvml_memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

static int gpu_of(void *device) {
    int (*uuid_of)(void *, char *, unsigned) = gputile_nvml_symbol("nvmlDeviceGetUUID");
    char uuid[96];
    if (!gputile_init() || !uuid_of || uuid_of(device, uuid, sizeof uuid) != NVML_SUCCESS) return -1;
    return gputile_gpu_of_uuid(uuid);
}

GPUTILE_EXPORT int nvmlDeviceGetMemoryInfo(void *device, struct nvml_memory *memory) {
    int (*ask)(void *, struct nvml_memory *) = gputile_nvml_symbol("nvmlDeviceGetMemoryInfo");
    uint64_t total, available;
    int result = ask ? ask(device, memory) : NVML_UNINITIALIZED, gpu;
    if (result != NVML_SUCCESS || (gpu = gpu_of(device)) < 0) return result;
    gputile_visible_memory(gpu, memory->total, memory->free, &total, &available);
    *memory = (struct nvml_memory){total, available, total - available};
    return NVML_SUCCESS;
}

GPUTILE_EXPORT int nvmlDeviceGetMemoryInfo_v2(void *device, struct nvml_memory_v2 *memory) {
    int (*ask)(void *, struct nvml_memory_v2 *) = gputile_nvml_symbol("nvmlDeviceGetMemoryInfo_v2");
    uint64_t total, available;
    int result = ask ? ask(device, memory) : NVML_UNINITIALIZED, gpu;
    if (result != NVML_SUCCESS || (gpu = gpu_of(device)) < 0) return result;
    gputile_visible_memory(gpu, memory->total, memory->free, &total, &available);
    memory->total = total, memory->reserved = 0, memory->free = available, memory->used = total - available;
    return NVML_SUCCESS;
}

static int version_by(const char *symbol, int *version) {
    int (*ask)(int *) = gputile_nvml_symbol(symbol);
    int result = ask ? ask(version) : NVML_UNINITIALIZED;
    if (result == NVML_SUCCESS && *version > GPUTILE_KNOWN_CUDA) *version = GPUTILE_KNOWN_CUDA;
    return result;
}

/* The version that cuDriverGetVersion returns. */
GPUTILE_EXPORT int nvmlSystemGetCudaDriverVersion(int *version) { return version_by(__func__, version); }

GPUTILE_EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *version) { return version_by(__func__, version); }

void *gputile_nvml_hook(const char *symbol) {
    if (!strcmp(symbol, "nvmlDeviceGetMemoryInfo"))
        return gputile_nvml_symbol(symbol) ? (void *)nvmlDeviceGetMemoryInfo : NULL;
    if (!strcmp(symbol, "nvmlDeviceGetMemoryInfo_v2"))
        return gputile_nvml_symbol(symbol) ? (void *)nvmlDeviceGetMemoryInfo_v2 : NULL;
    if (!strcmp(symbol, "nvmlSystemGetCudaDriverVersion"))
        return gputile_nvml_symbol(symbol) ? (void *)nvmlSystemGetCudaDriverVersion : NULL;
    if (!strcmp(symbol, "nvmlSystemGetCudaDriverVersion_v2"))
        return gputile_nvml_symbol(symbol) ? (void *)nvmlSystemGetCudaDriverVersion_v2 : NULL;
    return NULL;
}
