/* Is a libnvidia-ml.so.1 that tells the memory of the simulated machine, and no more. */
#include "simulated/simulated.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_FOUND = 6 };
struct memory {
    unsigned long long total, free, used;
};
struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

static const struct simulated_machine *shared;

EXPORT int nvmlInit_v2(void) {
    const char *path = getenv("GPUTILE_FAKE_CUDA");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *map = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *shared, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) return UNINITIALIZED;
    shared = map;
    return OK;
}
EXPORT int nvmlInitWithFlags(unsigned flags) { return (void)flags, nvmlInit_v2(); }
EXPORT int nvmlSystemGetCudaDriverVersion(int *version) { return *version = (int)shared->header.driver_version, OK; }
EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *version) { return nvmlSystemGetCudaDriverVersion(version); }
EXPORT int nvmlShutdown(void) { return OK; }
EXPORT const char *nvmlErrorString(int error) { return error == OK ? "Success" : "Error"; }
EXPORT int nvmlDeviceGetCount_v2(unsigned *count) { return *count = shared->header.gpus, OK; }
EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    *device = (void *)&shared->gpu[index];
    return index < shared->header.gpus ? OK : INVALID_ARGUMENT;
}
EXPORT int nvmlDeviceGetUUID(void *device, char *text, unsigned length) {
    const unsigned char *u = ((struct simulated_gpu *)device)->uuid;
    snprintf(text, length, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1], u[2],
             u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
    return OK;
}
EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    char text[64];
    for (unsigned i = 0; i < shared->header.gpus; i++)
        if (nvmlDeviceGetUUID((void *)&shared->gpu[i], text, sizeof text) == OK && !strcmp(text, uuid))
            return *device = (void *)&shared->gpu[i], OK;
    return NOT_FOUND;
}
EXPORT int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory) {
    const struct simulated_gpu *gpu = device;
    *memory = (struct memory){gpu->total, gpu->total - gpu->used, gpu->used};
    return OK;
}
EXPORT int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory_v2 *memory) {
    const struct simulated_gpu *gpu = device;
    *memory = (struct memory_v2){memory->version, gpu->total, 0, gpu->total - gpu->used, gpu->used};
    return OK;
}
