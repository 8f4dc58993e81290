/* Simulates the functions of libnvidia-ml.so.1 for the memory of the machine and of its processes. With
 * GPUTILE_FAKE_NVML_BLIND it lists no processes, as if they were in another PID namespace.
 */
#include "simulated/simulated.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };
struct memory {
    unsigned long long total, free, used;
};
struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};
struct process {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
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
EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, struct process *infos) {
    const unsigned room = *count;
    const long gpu = (const struct simulated_gpu *)device - shared->gpu;
    *count = 0;
    if (getenv("GPUTILE_FAKE_NVML_BLIND")) return OK;
    for (int i = 0; i < SIMULATED_MOST_PROCESSES; i++) {
        const struct simulated_process *p = &shared->process[i];
        if (!p->pid || !p->used[gpu]) continue;
        if (*count < room) infos[*count] = (struct process){(unsigned)p->pid, p->used[gpu], ~0U, ~0U};
        ++*count;
    }
    return *count > room ? INSUFFICIENT_SIZE : OK;
}
/* No process uses graphics on a simulated GPU. */
EXPORT int nvmlDeviceGetGraphicsRunningProcesses_v3(void *device, unsigned *count, struct process *infos) {
    (void)device, (void)infos;
    return *count = 0, OK;
}
