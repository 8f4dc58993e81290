/* The functions of NVML that this library hooks. */
#ifndef GPUTILE_NVML_H
#define GPUTILE_NVML_H

/* The hook of a symbol of libnvidia-ml.so.1, or NULL if there is no hook or NVML is not loaded. */
void *gputile_nvml_hook(const char *symbol);

#endif
