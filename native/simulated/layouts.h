/* The form of the simulated machine's file: what C and Python have in common.
 * Made by `make layouts` from src/gputile/node/native_layouts.py, which says what the constants mean. */
#ifndef GPUTILE_SIMULATED_LAYOUTS_H
#define GPUTILE_SIMULATED_LAYOUTS_H

#include <stddef.h>
#include <stdint.h>

enum {
    SIMULATED_MAGIC = 0x64756366,
    SIMULATED_MOST_GPUS = 8,
    SIMULATED_MOST_PROCESSES = 256,
};

struct simulated_header {
    uint32_t magic;
    uint32_t gpus;
    uint32_t driver_version;
    uint32_t unused;
};
_Static_assert(sizeof(struct simulated_header) == 16, "simulated_header");
_Static_assert(offsetof(struct simulated_header, magic) == 0, "simulated_header.magic");
_Static_assert(offsetof(struct simulated_header, gpus) == 4, "simulated_header.gpus");
_Static_assert(offsetof(struct simulated_header, driver_version) == 8, "simulated_header.driver_version");
_Static_assert(offsetof(struct simulated_header, unused) == 12, "simulated_header.unused");

struct simulated_gpu {
    uint8_t uuid[16];
    uint64_t total; /* bytes */
    uint64_t used;
    uint64_t peak; /* the most that was ever in use */
    uint64_t context_bytes; /* what a context takes */
    uint64_t module_bytes; /* what a loaded module takes */
    uint64_t free_at_ns; /* CLOCK_MONOTONIC: when the GPU has done all that was submitted */
    uint64_t busy_ns;
    uint64_t launches;
    uint64_t bytes_per_us; /* of memory copies; 0: they take no time */
    uint64_t reserved[5];
};
_Static_assert(sizeof(struct simulated_gpu) == 128, "simulated_gpu");
_Static_assert(offsetof(struct simulated_gpu, uuid) == 0, "simulated_gpu.uuid");
_Static_assert(offsetof(struct simulated_gpu, total) == 16, "simulated_gpu.total");
_Static_assert(offsetof(struct simulated_gpu, used) == 24, "simulated_gpu.used");
_Static_assert(offsetof(struct simulated_gpu, peak) == 32, "simulated_gpu.peak");
_Static_assert(offsetof(struct simulated_gpu, context_bytes) == 40, "simulated_gpu.context_bytes");
_Static_assert(offsetof(struct simulated_gpu, module_bytes) == 48, "simulated_gpu.module_bytes");
_Static_assert(offsetof(struct simulated_gpu, free_at_ns) == 56, "simulated_gpu.free_at_ns");
_Static_assert(offsetof(struct simulated_gpu, busy_ns) == 64, "simulated_gpu.busy_ns");
_Static_assert(offsetof(struct simulated_gpu, launches) == 72, "simulated_gpu.launches");
_Static_assert(offsetof(struct simulated_gpu, bytes_per_us) == 80, "simulated_gpu.bytes_per_us");
_Static_assert(offsetof(struct simulated_gpu, reserved) == 88, "simulated_gpu.reserved");

struct simulated_process {
    int32_t pid;
    uint32_t reserved;
    uint64_t used[8]; /* bytes */
    uint64_t busy_ns[8];
    uint64_t launches;
};
_Static_assert(sizeof(struct simulated_process) == 144, "simulated_process");
_Static_assert(offsetof(struct simulated_process, pid) == 0, "simulated_process.pid");
_Static_assert(offsetof(struct simulated_process, reserved) == 4, "simulated_process.reserved");
_Static_assert(offsetof(struct simulated_process, used) == 8, "simulated_process.used");
_Static_assert(offsetof(struct simulated_process, busy_ns) == 72, "simulated_process.busy_ns");
_Static_assert(offsetof(struct simulated_process, launches) == 136, "simulated_process.launches");

struct simulated_machine {
    struct simulated_header header;
    struct simulated_gpu gpu[8];
    struct simulated_process process[256];
};
_Static_assert(sizeof(struct simulated_machine) == 37904, "simulated_machine");
_Static_assert(offsetof(struct simulated_machine, header) == 0, "simulated_machine.header");
_Static_assert(offsetof(struct simulated_machine, gpu) == 16, "simulated_machine.gpu");
_Static_assert(offsetof(struct simulated_machine, process) == 1040, "simulated_machine.process");

#endif
