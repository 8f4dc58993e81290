/* Measures and charges the driver's memory for modules and libraries until they are unloaded.
 *
 * Modules that are loaded lazily allocate at their first launch, which is not measured.
 */
#include "accounting/allocation_table.h"
#include "accounting/overhead.h"
#include "base/driver.h"
#include "hooks/current_gpu.h"
#include "hooks/hook_table.h"
#include "hooks/init.h"

CUresult cuModuleUnload(void *module);
CUresult cuLibraryUnload(void *library);

struct load {
    struct gputile_overhead overhead;
    uint64_t context;
};

static CUresult begin_load(struct load *load) {
    CUdevice device;
    int gpu;
    *load = (struct load){.overhead = {.gpu = -1}};
    if (!gputile_init()) return CUDA_ERROR_NO_DEVICE;
    if (gputile_current_gpu_and_owner(&gpu, &load->context) == CUDA_SUCCESS &&
        gputile_driver()->cuCtxGetDevice(&device) == CUDA_SUCCESS)
        return gputile_overhead_begin(&load->overhead, device, GPUTILE_OVERHEAD_MODULE);
    return CUDA_SUCCESS;
}

/* Charge a loaded module. On an error there is no room for the module, and the caller must unload it. */
static CUresult charge_load(const struct load *load, const void *loaded) {
    uint64_t bytes;
    CUresult result = gputile_overhead_end(&load->overhead, &bytes);
    if (result == CUDA_SUCCESS && bytes)
        gputile_allocation_add((struct gputile_allocation){GPUTILE_MODULE, (uintptr_t)loaded, load->overhead.gpu, bytes,
                                                           load->context, 1});
    return result;
}

static CUresult end_module(const struct load *load, CUresult result, void *const *module) {
    if (result != CUDA_SUCCESS) return result;
    result = charge_load(load, *module);
    if (result != CUDA_SUCCESS) CALL_REAL(cuModuleUnload, cuModuleUnload, *module);
    return result;
}

static CUresult end_library(const struct load *load, CUresult result, void *const *library) {
    if (result != CUDA_SUCCESS) return result;
    result = charge_load(load, *library);
    if (result != CUDA_SUCCESS) CALL_REAL(cuLibraryUnload, cuLibraryUnload, *library);
    return result;
}

GPUTILE_EXPORT CUresult cuModuleLoad(void **module, const char *file) {
    struct load load;
    CUresult result = begin_load(&load);
    if (result != CUDA_SUCCESS) return result;
    return end_module(&load, CALL_REAL(cuModuleLoad, cuModuleLoad, module, file), module);
}

GPUTILE_EXPORT CUresult cuModuleLoadData(void **module, const void *image) {
    struct load load;
    CUresult result = begin_load(&load);
    if (result != CUDA_SUCCESS) return result;
    return end_module(&load, CALL_REAL(cuModuleLoadData, cuModuleLoadData, module, image), module);
}

GPUTILE_EXPORT CUresult cuModuleLoadDataEx(void **module, const void *image, unsigned count, int *options,
                                           void **values) {
    struct load load;
    CUresult result = begin_load(&load);
    if (result != CUDA_SUCCESS) return result;
    result = CALL_REAL(cuModuleLoadDataEx, cuModuleLoadDataEx, module, image, count, options, values);
    return end_module(&load, result, module);
}

GPUTILE_EXPORT CUresult cuModuleLoadFatBinary(void **module, const void *image) {
    struct load load;
    CUresult result = begin_load(&load);
    if (result != CUDA_SUCCESS) return result;
    return end_module(&load, CALL_REAL(cuModuleLoadFatBinary, cuModuleLoadFatBinary, module, image), module);
}

GPUTILE_EXPORT CUresult cuLibraryLoadData(void **library, const void *code, int *jit, void **jit_values,
                                          unsigned jit_count, int *options, void **values, unsigned count) {
    struct load load;
    CUresult result = begin_load(&load);
    if (result != CUDA_SUCCESS) return result;
    result = CALL_REAL(cuLibraryLoadData, cuLibraryLoadData, library, code, jit, jit_values, jit_count, options, values,
                       count);
    return end_library(&load, result, library);
}

GPUTILE_EXPORT CUresult cuLibraryLoadFromFile(void **library, const char *file, int *jit, void **jit_values,
                                              unsigned jit_count, int *options, void **values, unsigned count) {
    struct load load;
    CUresult result = begin_load(&load);
    if (result != CUDA_SUCCESS) return result;
    result = CALL_REAL(cuLibraryLoadFromFile, cuLibraryLoadFromFile, library, file, jit, jit_values, jit_count, options,
                       values, count);
    return end_library(&load, result, library);
}

static void end_unload(CUresult result, bool held, const struct gputile_allocation *taken) {
    if (held && result == CUDA_SUCCESS) gputile_overhead_give_back(taken->gpu, taken->bytes);
    else if (held) gputile_allocation_add(*taken);
}

GPUTILE_EXPORT CUresult cuModuleUnload(void *module) {
    struct gputile_allocation taken;
    bool held = gputile_allocation_take(GPUTILE_MODULE, (uintptr_t)module, &taken);
    CUresult result = CALL_REAL(cuModuleUnload, cuModuleUnload, module);
    end_unload(result, held, &taken);
    return result;
}

GPUTILE_EXPORT CUresult cuLibraryUnload(void *library) {
    struct gputile_allocation taken;
    bool held = gputile_allocation_take(GPUTILE_MODULE, (uintptr_t)library, &taken);
    CUresult result = CALL_REAL(cuLibraryUnload, cuLibraryUnload, library);
    end_unload(result, held, &taken);
    return result;
}
