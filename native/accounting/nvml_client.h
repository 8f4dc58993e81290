/* This library's own questions to NVML. Types as in the public nvml.h. */
#ifndef GPUTILE_NVML_CLIENT_H
#define GPUTILE_NVML_CLIENT_H

#include <stdbool.h>
#include <stdint.h>

enum { NVML_SUCCESS = 0, NVML_UNINITIALIZED = 1 };

struct nvml_memory {
    unsigned long long total, free, used;
};

/* A function of libnvidia-ml.so.1 itself, never this library's own; NULL while it is not loaded. */
void *gputile_nvml_symbol(const char *symbol);

/* A GPU's free memory by its UUID; false if NVML is not there. */
bool gputile_nvml_free(const char *uuid, uint64_t *bytes);

/* What NVIDIA counts of a GPU's memory for this process, 0 where it is not among the GPU's processes: it has no context
 * yet, or NVML lists the processes of other PID namespaces alone. False if nothing can be said. */
bool gputile_nvml_own(const char *uuid, uint64_t *bytes);

#endif
