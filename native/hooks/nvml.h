/* The functions of NVML that this library stands before. */
#ifndef GPUTILE_NVML_H
#define GPUTILE_NVML_H

/* The function in place of a symbol of libnvidia-ml.so.1; NULL if there is none, or the library is not loaded. */
void *gputile_nvml_hook(const char *symbol);

#endif
