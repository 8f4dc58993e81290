/* Measures and charges the driver's memory for a context, and releases the memory with the context. */
#define _GNU_SOURCE
#include <string.h>

#include "accounting/allocation_table.h"
#include "accounting/context_owners.h"
#include "accounting/gpus.h"
#include "accounting/overhead.h"
#include "base/driver.h"
#include "base/driver_lock.h"
#include "base/fork_handlers.h"
#include "hooks/hook_table.h"
#include "hooks/init.h"
#include "timeslice/drainer.h"

CUresult cuCtxDestroy_v2(CUcontext context);
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device);
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult cuCtxDetach(CUcontext context);

static CUresult may_create(CUdevice device) {
    if (!gputile_init_checked()) return CUDA_ERROR_NO_DEVICE;
    return gputile_gpu_of_device(device) < 0 ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS;
}

/* Locked while a context is created and measured, so that each context is charged only its own memory. */
static struct gputile_driver_lock contexts_lock = GPUTILE_DRIVER_LOCK;

static CUresult begin_create(CUdevice device, struct gputile_overhead *overhead) {
    CUresult result = may_create(device);
    if (result != CUDA_SUCCESS) return result;
    gputile_driver_lock(&contexts_lock);
    result = gputile_overhead_begin(overhead, device, GPUTILE_OVERHEAD_CONTEXT);
    if (result != CUDA_SUCCESS) gputile_driver_unlock(&contexts_lock);
    return result;
}

/* Charge a new context. Destroy it if there is no room for it. */
static CUresult end_create(const struct gputile_overhead *overhead, CUresult result, const CUcontext *context) {
    uint64_t bytes;
    if (result != CUDA_SUCCESS) gputile_overhead_cancel(overhead);
    else if ((result = gputile_overhead_end(overhead, &bytes)) != CUDA_SUCCESS)
        CALL_REAL(cuCtxDestroy, cuCtxDestroy_v2, *context);
    else gputile_context_add(*context, overhead->gpu, bytes);
    gputile_driver_unlock(&contexts_lock);
    return result;
}

GPUTILE_EXPORT CUresult cuCtxCreate(CUcontext *context, unsigned flags, CUdevice device) {
    struct gputile_overhead overhead;
    CUresult result = begin_create(device, &overhead);
    if (result != CUDA_SUCCESS) return result;
    return end_create(&overhead, CALL_REAL(cuCtxCreate, cuCtxCreate, context, flags, device), context);
}

GPUTILE_EXPORT CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device) {
    struct gputile_overhead overhead;
    CUresult result = begin_create(device, &overhead);
    if (result != CUDA_SUCCESS) return result;
    return end_create(&overhead, CALL_REAL(cuCtxCreate, cuCtxCreate_v2, context, flags, device), context);
}

GPUTILE_EXPORT CUresult cuCtxCreate_v3(CUcontext *context, void *affinity, int count, unsigned flags, CUdevice device) {
    struct gputile_overhead overhead;
    CUresult result = begin_create(device, &overhead);
    if (result != CUDA_SUCCESS) return result;
    return end_create(&overhead, CALL_REAL(cuCtxCreate, cuCtxCreate_v3, context, affinity, count, flags, device),
                      context);
}

GPUTILE_EXPORT CUresult cuCtxCreate_v4(CUcontext *context, void *parameters, unsigned flags, CUdevice device) {
    struct gputile_overhead overhead;
    CUresult result = begin_create(device, &overhead);
    if (result != CUDA_SUCCESS) return result;
    return end_create(&overhead, CALL_REAL(cuCtxCreate, cuCtxCreate_v4, context, parameters, flags, device), context);
}

GPUTILE_EXPORT CUresult cuCtxDestroy(CUcontext context) {
    const uint64_t owner = gputile_context_owner(context);
    timeslice_forget_context(context);
    const CUresult result = CALL_REAL(cuCtxDestroy, cuCtxDestroy, context);
    if (result == CUDA_SUCCESS) gputile_release_owner(owner);
    return result;
}

GPUTILE_EXPORT CUresult cuCtxDestroy_v2(CUcontext context) {
    const uint64_t owner = gputile_context_owner(context);
    timeslice_forget_context(context);
    const CUresult result = CALL_REAL(cuCtxDestroy, cuCtxDestroy_v2, context);
    if (result == CUDA_SUCCESS) gputile_release_owner(owner);
    return result;
}

/* The driver creates a device's primary context at the first retain, and destroys it at the last release. */
enum { MOST_DEVICES = 64 };
static CUcontext primary[MOST_DEVICES];
static unsigned retained[MOST_DEVICES]; /* by this process */

static int is_active(CUdevice device) {
    unsigned flags;
    int active = 1;
    if (gputile_driver()->cuDevicePrimaryCtxGetState)
        gputile_driver()->cuDevicePrimaryCtxGetState(device, &flags, &active);
    return active;
}

static CUresult make_primary(CUcontext *context, CUdevice device) {
    struct gputile_overhead overhead = {.gpu = -1};
    uint64_t bytes;
    const int was_active = is_active(device);
    CUresult result = may_create(device);
    if (result == CUDA_SUCCESS && !was_active)
        result = gputile_overhead_begin(&overhead, device, GPUTILE_OVERHEAD_CONTEXT);
    if (result != CUDA_SUCCESS) return result;
    result = CALL_REAL(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, context, device);
    if (result != CUDA_SUCCESS) return gputile_overhead_cancel(&overhead), result;
    if (device < MOST_DEVICES) primary[device] = *context, retained[device]++;
    if (was_active) return CUDA_SUCCESS;
    result = gputile_overhead_end(&overhead, &bytes);
    if (result != CUDA_SUCCESS) {
        CALL_REAL(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, device);
        if (device < MOST_DEVICES) retained[device]--;
    } else gputile_context_add(*context, overhead.gpu, bytes);
    return result;
}

GPUTILE_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    gputile_driver_lock(&contexts_lock);
    CUresult result = make_primary(context, device);
    gputile_driver_unlock(&contexts_lock);
    return result;
}

/* A release of a primary context that is in progress. A reset frees the memory even if other users retain the
 * context. */
struct release {
    CUdevice device;
    bool reset, seen;
    uint64_t owner;
};

static struct release begin_release(CUdevice device, bool reset) {
    struct release release = {.device = device, .reset = reset, .seen = device >= 0 && device < MOST_DEVICES};
    gputile_driver_lock(&contexts_lock);
    if (!release.seen) return release;
    release.owner = gputile_context_owner(primary[device]);
    if (reset || retained[device] <= 1) timeslice_forget_context(primary[device]);
    return release;
}

static CUresult end_release(const struct release *release, CUresult result) {
    const CUdevice device = release->device;
    if (result == CUDA_SUCCESS && release->seen) {
        retained[device] = release->reset || !retained[device] ? 0 : retained[device] - 1;
        if (release->reset || !is_active(device)) {
            gputile_release_owner(release->owner);
            primary[device] = NULL;
        }
    }
    gputile_driver_unlock(&contexts_lock);
    return result;
}

GPUTILE_EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
    const struct release release = begin_release(device, false);
    return end_release(&release, CALL_REAL(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease, device));
}

GPUTILE_EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    const struct release release = begin_release(device, false);
    return end_release(&release, CALL_REAL(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, device));
}

GPUTILE_EXPORT CUresult cuDevicePrimaryCtxReset(CUdevice device) {
    const struct release release = begin_release(device, true);
    return end_release(&release, CALL_REAL(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset, device));
}

GPUTILE_EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
    const struct release release = begin_release(device, true);
    return end_release(&release, CALL_REAL(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2, device));
}

/* The device whose primary context this is, or -1 for another context. Adds `more` to the device's users. */
static CUdevice device_of_primary(CUcontext context, unsigned more) {
    CUdevice found = -1;
    gputile_driver_lock(&contexts_lock);
    for (CUdevice device = 0; device < MOST_DEVICES && context; device++)
        if (primary[device] == context) found = device, retained[device] += more;
    gputile_driver_unlock(&contexts_lock);
    return found;
}

/* These two functions of CUDA 3 are still supported. The last user of a context destroys it. */
GPUTILE_EXPORT CUresult cuCtxAttach(CUcontext *context, unsigned flags) {
    CUresult result = CALL_REAL(cuCtxAttach, cuCtxAttach, context, flags);
    if (result == CUDA_SUCCESS && device_of_primary(*context, 1) < 0)
        gputile_allocation_add_reference(GPUTILE_CONTEXT, gputile_context_key(*context));
    return result;
}

static CUresult detach_primary(CUcontext context, CUdevice device) {
    const struct release release = begin_release(device, false);
    return end_release(&release, CALL_REAL(cuCtxDetach, cuCtxDetach, context));
}

GPUTILE_EXPORT CUresult cuCtxDetach(CUcontext context) {
    struct gputile_allocation taken;
    CUdevice device = device_of_primary(context, 0);
    if (device >= 0) return detach_primary(context, device);
    bool last = gputile_allocation_take(GPUTILE_CONTEXT, gputile_context_key(context), &taken);
    if (last) timeslice_forget_context(context);
    CUresult result = CALL_REAL(cuCtxDetach, cuCtxDetach, context);
    if (result != CUDA_SUCCESS && last) taken.references = 1, gputile_allocation_add(taken);
    else if (result != CUDA_SUCCESS) gputile_allocation_add_reference(GPUTILE_CONTEXT, gputile_context_key(context));
    else if (last) gputile_release_allocation(&taken), gputile_release_owner(taken.owner);
    return result;
}

/* A forked child has no contexts. */
static void in_child(void) {
    gputile_driver_lock_in_child(&contexts_lock);
    memset(primary, 0, sizeof primary), memset(retained, 0, sizeof retained);
}

static const struct gputile_fork_handlers handlers = {.order = GPUTILE_FORK_CONTEXTS, .in_child = in_child};
static const struct gputile_fork_handlers *const registered GPUTILE_FORK_HANDLERS = &handlers;
