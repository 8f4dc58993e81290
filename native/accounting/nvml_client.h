/* This library's own calls of NVML. The types are those of the public nvml.h. */
#ifndef GPUTILE_NVML_CLIENT_H
#define GPUTILE_NVML_CLIENT_H

#include <stdbool.h>
#include <stdint.h>

enum { NVML_SUCCESS = 0, NVML_UNINITIALIZED = 1 };

struct nvml_memory {
    unsigned long long total, free, used;
};

/* A function of libnvidia-ml.so.1 itself, never a hook of this library. It is NULL while NVML is not loaded. */
void *gputile_nvml_symbol(const char *symbol);

/* The free memory of the GPU with this UUID. Returns false if NVML is not available. */
bool gputile_nvml_free(const char *uuid, uint64_t *bytes);

/* This process's memory on a GPU, as NVML reports it. It is 0 if NVML does not list this process, because the process
 * has no context yet, or because NVML lists only processes of other PID namespaces. Returns false if it is unknown. */
bool gputile_nvml_own(const char *uuid, uint64_t *bytes);

#endif
