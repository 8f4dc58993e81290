/* Identifies devices by their UUIDs, and caches the result. */
#include "accounting/gpus.h"

#include <stdio.h>
#include <string.h>

#include "accounting/limits.h"
#include "base/driver.h"
#include "base/log.h"

enum { MOST_DEVICES = 64, UNKNOWN = 0, NONE = -1 };

/* The GPU + 1 of each device, or NONE or UNKNOWN. The devices of a process never change. */
static int found[MOST_DEVICES];

int gputile_gpu_of_uuid(const char *uuid) {
    const struct gputile_limits *limits = gputile_limits();
    for (unsigned i = 0; i < limits->count; i++)
        if (!strcmp(limits->gpu[i].uuid, uuid)) return (int)i;
    return -1;
}

static void write_uuid(char text[GPUTILE_UUID_SIZE], const CUuuid *uuid) {
    int length = snprintf(text, GPUTILE_UUID_SIZE, "GPU-");
    for (int i = 0; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10) text[length++] = '-';
        length += snprintf(text + length, GPUTILE_UUID_SIZE - (size_t)length, "%02x", (unsigned char)uuid->bytes[i]);
    }
}

int gputile_gpu_of_device(CUdevice device) {
    CUuuid uuid;
    char text[GPUTILE_UUID_SIZE];
    if (device < 0 || device >= MOST_DEVICES || !gputile_driver()->cuDeviceGetUuid) return -1;
    int known = __atomic_load_n(&found[device], __ATOMIC_RELAXED);
    if (known != UNKNOWN) return known == NONE ? -1 : known - 1;
    if (gputile_driver()->cuDeviceGetUuid(&uuid, device) != CUDA_SUCCESS) return -1;
    write_uuid(text, &uuid);
    int gpu = gputile_gpu_of_uuid(text);
    if (gpu < 0) gputile_log("%s is not available: this container has no share of that GPU", text);
    __atomic_store_n(&found[device], gpu < 0 ? NONE : gpu + 1, __ATOMIC_RELAXED);
    return gpu;
}
