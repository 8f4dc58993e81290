/* Simulates cuGetProcAddress: it finds functions by names without suffix, by version and by kind of default stream. */
#define _GNU_SOURCE
#include "simulated/simulated.h"
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

CUresult cuMemAllocQuantum(CUdeviceptr *pointer, size_t bytes);

/* The functions with several forms: {name, since, symbol}. The last row whose `since` is not newer applies. */
static const struct {
    const char *name;
    int since;
    const char *symbol;
} forms[] = {
    {"cuCtxCreate", 3020, "cuCtxCreate_v2"},
    {"cuCtxCreate", 11040, "cuCtxCreate_v3"},
    {"cuCtxCreate", 12050, "cuCtxCreate_v4"},
    {"cuDeviceGetUuid", 9020, "cuDeviceGetUuid"},
    {"cuDeviceGetUuid", 11040, "cuDeviceGetUuid_v2"},
    {"cuDevicePrimaryCtxRelease", 7000, "cuDevicePrimaryCtxRelease"},
    {"cuDevicePrimaryCtxRelease", 11000, "cuDevicePrimaryCtxRelease_v2"},
    {"cuGetProcAddress", 11030, "cuGetProcAddress"},
    {"cuGetProcAddress", 12000, "cuGetProcAddress_v2"},
    {"cuGraphAddNode", 12020, "cuGraphAddNode"},
    {"cuGraphAddNode", 12030, "cuGraphAddNode_v2"},
    {"cuGraphInstantiate", 11000, "cuGraphInstantiate_v2"},
    {"cuGraphInstantiate", 12000, "cuGraphInstantiateWithFlags"},
    {"cuMemAlloc", 14000, "cuMemAllocQuantum"},
};

static void (*subscriber)(const char *call);
static _Thread_local bool announcing;

EXPORT void fakeSubscribe(void (*callback)(const char *call)) { subscriber = callback; }

void announce(const char *call) {
    if (!subscriber || announcing) return;
    announcing = true;
    subscriber(call);
    announcing = false;
}

static void *own(const char *symbol) {
    static void *self;
    Dl_info info;
    if (!self && dladdr((void *)cuInit, &info)) self = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    return dlsym(self, symbol);
}

static void *look(const char *name, int version, cuuint64_t flags) {
    char text[128];
    const char *symbol = NULL;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        if (!strcmp(forms[i].name, name) && forms[i].since <= version) symbol = forms[i].symbol;
    if (symbol && !strcmp(symbol, "cuMemAllocQuantum")) return (void *)cuMemAllocQuantum; /* dlsym may be hooked */
    if (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)
        for (int i = 0; i < 4; i++) {
            snprintf(text, sizeof text, "%s%s%s", name, i / 2 ? "_v2" : "", i % 2 ? "_ptds" : "_ptsz");
            if (own(text)) return own(text);
        }
    if (symbol) return own(symbol);
    snprintf(text, sizeof text, "%s_v2", name);
    return own(text) ? own(text) : own(name);
}

EXPORT CUresult cuGetProcAddress(const char *name, void **function, int version, cuuint64_t flags) {
    if (!name || !function) return CUDA_ERROR_INVALID_VALUE;
    return (*function = look(name, version, flags)) ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
EXPORT CUresult cuGetProcAddress_v2(const char *name, void **function, int version, cuuint64_t flags, int *status) {
    if (!name || !function) return CUDA_ERROR_INVALID_VALUE;
    *function = look(name, version, flags);
    if (status) *status = *function ? 0 : 1;
    return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
