/* Maps the machine's file, which lists the GPUs, and the memory that each living process uses on them. */
#define _GNU_SOURCE
#include "simulated/simulated.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MEMORY_LOCK = 1 << 20, SLOT_LOCKS = (1 << 20) + 1 }; /* offsets beyond the file, only for locks */

struct simulated_machine *machine;
pthread_mutex_t simulated_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t memory_mutex = PTHREAD_MUTEX_INITIALIZER;
static int machine_fd = -1, slot_fd = -1, own_slot = -1, visible[SIMULATED_MOST_GPUS], visible_gpus;

static int lock_with(int fd, int command, off_t start, short type) {
    struct flock range = {.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = 1};
    int result;
    while ((result = fcntl(fd, command, &range)) == -1 && command == F_OFD_SETLKW) continue;
    return command == F_OFD_GETLK ? range.l_type != F_UNLCK : result;
}

static int lock(int command, off_t start, short type) { return lock_with(machine_fd, command, start, type); }

static int cancelling; /* the cancellation state of the mutex's owner. A driver's calls cannot be cancelled. */

static void lock_memory(void) {
    int before;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    pthread_mutex_lock(&memory_mutex), lock(F_OFD_SETLKW, MEMORY_LOCK, F_WRLCK);
    cancelling = before;
}

static void unlock_memory(void) {
    int before = cancelling;
    lock(F_OFD_SETLKW, MEMORY_LOCK, F_UNLCK), pthread_mutex_unlock(&memory_mutex);
    pthread_setcancelstate(before, NULL);
}

/* Free the memory of dead processes. The caller holds the memory lock. */
static void reap(void) {
    for (int i = 0; i < SIMULATED_MOST_PROCESSES; i++) {
        struct simulated_process *p = &machine->process[i];
        if (!p->pid || i == own_slot || lock(F_OFD_GETLK, SLOT_LOCKS + i, F_WRLCK)) continue;
        for (unsigned c = 0; c < machine->header.gpus; c++) machine->gpu[c].used -= p->used[c], p->used[c] = 0;
        p->pid = 0;
    }
}

static void see(const char *list) {
    char copy[512], *rest, *word;
    if (!list) {
        for (unsigned i = 0; i < machine->header.gpus; i++) visible[visible_gpus++] = (int)i;
        return;
    }
    snprintf(copy, sizeof copy, "%s", list);
    for (word = strtok_r(copy, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
        int found = -1;
        for (unsigned i = 0; i < machine->header.gpus; i++) {
            const unsigned char *u = machine->gpu[i].uuid;
            char name[48];
            snprintf(name, sizeof name, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
                     u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14],
                     u[15]);
            if (!strncmp(word, "GPU-", 4) ? !strncmp(name, word, strlen(word)) : strtol(word, NULL, 10) == (long)i)
                found = (int)i;
        }
        if (found < 0) return; /* as in CUDA, only the devices before an invalid one are visible */
        visible[visible_gpus++] = found;
    }
}

static void in_child(void) {
    close(machine_fd);
    /* As with the real driver's descriptors, the parent's memory is not freed until the last descriptor is closed. */
    machine_fd = slot_fd = own_slot = -1;
    pthread_mutex_init(&memory_mutex, NULL);
    pthread_mutex_init(&simulated_mutex, NULL);
    memory_in_child(), graphs_in_child(), contexts_in_child(), work_in_child();
    if (machine) munmap(machine, sizeof *machine);
    machine = NULL, visible_gpus = 0;
}

CUresult simulated_open(void) {
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    static bool registered;
    CUresult result = CUDA_ERROR_NO_DEVICE;
    if (machine) return CUDA_SUCCESS;
    pthread_mutex_lock(&once);
    const char *path = getenv("GPUTILE_FAKE_CUDA");
    if (!machine && path && (machine_fd = open(path, O_RDWR | O_CLOEXEC)) >= 0) {
        void *map = mmap(NULL, sizeof *machine, PROT_READ | PROT_WRITE, MAP_SHARED, machine_fd, 0);
        slot_fd = open(path, O_RDWR | O_CLOEXEC);
        if (map != MAP_FAILED && ((struct simulated_machine *)map)->header.magic == SIMULATED_MAGIC) {
            machine = map;
            see(getenv("CUDA_VISIBLE_DEVICES"));
            lock_memory();
            reap();
            for (int i = 0; i < SIMULATED_MOST_PROCESSES && own_slot < 0; i++)
                if (!machine->process[i].pid) {
                    lock_with(slot_fd, F_OFD_SETLK, SLOT_LOCKS + i, F_WRLCK);
                    memset(&machine->process[i], 0, sizeof machine->process[i]);
                    machine->process[i].pid = getpid(), own_slot = i;
                }
            unlock_memory();
            if (!registered) pthread_atfork(NULL, NULL, in_child), registered = true;
        }
    }
    if (machine) result = visible_gpus && own_slot >= 0 ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
    pthread_mutex_unlock(&once);
    return result;
}

int visible_count(void) { return visible_gpus; }

struct simulated_gpu *gpu_of(int device) {
    return machine && device >= 0 && device < visible_gpus ? &machine->gpu[visible[device]] : NULL;
}

CUresult take(int device, size_t bytes) {
    struct simulated_gpu *gpu = gpu_of(device);
    CUresult result = CUDA_SUCCESS;
    if (!gpu) return CUDA_ERROR_INVALID_DEVICE;
    lock_memory();
    if (bytes > gpu->total - gpu->used || gpu->used + bytes > gpu->peak) reap(); /* dead processes use no memory */
    if (bytes > gpu->total - gpu->used) result = CUDA_ERROR_OUT_OF_MEMORY;
    else {
        gpu->used += bytes;
        machine->process[own_slot].used[visible[device]] += bytes;
        if (gpu->used > gpu->peak) gpu->peak = gpu->used;
    }
    unlock_memory();
    return result;
}

void give(int device, size_t bytes) {
    struct simulated_gpu *gpu = gpu_of(device);
    if (!gpu) return;
    lock_memory();
    gpu->used -= bytes;
    machine->process[own_slot].used[visible[device]] -= bytes;
    unlock_memory();
}

size_t used_on(int device) {
    lock_memory();
    reap();
    size_t used = gpu_of(device)->used;
    unlock_memory();
    return used;
}

void account_work(int device, uint64_t ns, bool kernel) {
    struct simulated_gpu *gpu = gpu_of(device);
    struct simulated_process *own = &machine->process[own_slot];
    if (!gpu) return;
    __atomic_fetch_add(&gpu->busy_ns, ns, __ATOMIC_RELAXED);
    __atomic_fetch_add(&own->busy_ns[visible[device]], ns, __ATOMIC_RELAXED);
    __atomic_fetch_add(&gpu->launches, kernel, __ATOMIC_RELAXED);
    __atomic_fetch_add(&own->launches, kernel, __ATOMIC_RELAXED);
}
