/* Maps and locks the usage file, and detects the slots of ended processes. */
#define _GNU_SOURCE
#include "accounting/shared_usage.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/fork_handlers.h"
#include "base/guarded_fd.h"
#include "base/layouts.h"

#ifndef F_OFD_GETLK
enum { F_OFD_GETLK = 36, F_OFD_SETLK = 37, F_OFD_SETLKW = 38 };
#endif

enum { NO_SLOT = -1 };
_Static_assert(sizeof(struct gputile_usage) <= GPUTILE_USAGE_BYTES, "the table does not fit into its file");

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* a file lock does not exclude threads of the same process */
static int cancelling; /* the cancellation state of the thread that holds the mutex */
static struct gputile_usage *usage;
static char usage_path[256];
/* Two open file descriptions of the same file. One locks the file for a short time. The other one maps the table and
 * locks the slot. The mapping keeps this lock even if the program closes the descriptor. A forked child keeps the
 * mapping, like the driver's descriptors. The driver frees a process's memory when the last of these is closed. */
static struct gputile_guarded_fd lock_file = GPUTILE_GUARDED_FD_NONE, slot_file = GPUTILE_GUARDED_FD_NONE;
static int own_slot = NO_SLOT;

static bool file_lock(const struct gputile_guarded_fd *file, int command, off_t start, short type) {
    struct flock range = {.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = 1};
    int result;
    do result = fcntl(file->fd, command, &range);
    while (result == -1 && errno == EINTR);
    if (command == F_OFD_GETLK) return result == 0 && range.l_type != F_UNLCK;
    return result == 0;
}

/* A program may close descriptors that it does not know, and reuse their numbers. Its files must not be locked. */
static bool still_open(void) {
    if (gputile_guarded_fd_is_ours(&lock_file)) return true;
    struct gputile_guarded_fd again;
    gputile_guarded_fd_set(&again, open(usage_path, O_RDWR | O_CLOEXEC));
    if (again.fd < 0) return false;
    if (again.inode != lock_file.inode || again.device != lock_file.device)
        return gputile_guarded_fd_close(&again), false;
    lock_file = again;
    return true;
}

/* A thread that is cancelled here would never unlock the mutex. */
static void begin_alone(void) {
    int before;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    pthread_mutex_lock(&mutex);
    cancelling = before;
}

static void end_alone(void) {
    int before = cancelling;
    pthread_mutex_unlock(&mutex);
    pthread_setcancelstate(before, NULL);
}

static bool enter(void) {
    begin_alone();
    if (usage && still_open() && file_lock(&lock_file, F_OFD_SETLKW, GPUTILE_USAGE_LOCK_ALL, F_WRLCK)) return true;
    end_alone();
    return false;
}

static void leave(void) {
    file_lock(&lock_file, F_OFD_SETLK, GPUTILE_USAGE_LOCK_ALL, F_UNLCK);
    end_alone();
}

/* The start time of a process, or 0 if /proc does not show the process. `ended` is true for a zombie, too. */
static uint64_t start_of(int pid, bool *ended) {
    char path[32], text[1024], *at;
    *ended = false;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    text[length > 0 ? length : 0] = '\0';
    at = strrchr(text, ')'); /* the name before the bracket may contain any character */
    if (!at || at[1] != ' ') return 0;
    *ended = at[2] == 'Z' || at[2] == 'X';
    for (int field = 2; at && field < 22; field++) {
        at = strchr(at + 1, ' ');
        /* A main thread that has ended is a zombie, even if other threads still run and use the driver's memory. */
        if (at && field == 19 && strtoull(at + 1, NULL, 10) > 1) *ended = false;
    }
    return at ? strtoull(at + 1, NULL, 10) : 0;
}

/* Whether a process still has its address space, which it loses while it ends. */
static bool runs_a_program(int pid) {
    char path[32], byte;
    snprintf(path, sizeof path, "/proc/%d/maps", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false; /* unknown, because the process belongs to another user */
    bool found = read(fd, &byte, 1) == 1;
    close(fd);
    return found;
}

/* Whether a slot's process is dead. Then no process holds the slot's lock, and the process has ended or executed
 * another program. The lock alone proves nothing, because an ending process may lose it before the driver's memory is
 * freed. */
static bool is_dead(int index) {
    const struct gputile_usage_slot *slot = &usage->slot[index];
    bool ended;
    if (!slot->pid || index == own_slot ||
        file_lock(&lock_file, F_OFD_GETLK, GPUTILE_USAGE_LOCK_SLOTS + index, F_WRLCK))
        return false;
    if (slot->pid == getpid()) return true; /* this process before exec */
    if (kill(slot->pid, 0) == -1 && errno == ESRCH) return true;
    uint64_t started = start_of(slot->pid, &ended);
    return ended || (started && (started != slot->started || runs_a_program(slot->pid)));
}

static void reap(void) {
    for (unsigned i = 0; i < usage->top && i < GPUTILE_USAGE_SLOTS; i++) {
        if (!is_dead((int)i)) continue;
        for (unsigned gpu = 0; gpu < GPUTILE_MOST_GPUS; gpu++) usage->used[gpu][i] = 0;
        usage->slot[i].pid = 0;
    }
}

static uint64_t sum(unsigned gpu) {
    uint64_t total = 0;
    for (unsigned i = 0; i < usage->top && i < GPUTILE_USAGE_SLOTS; i++)
        if (__builtin_add_overflow(total, usage->used[gpu][i], &total)) return UINT64_MAX;
    return total;
}

static void note_peak(unsigned gpu, uint64_t held) {
    if (held > usage->peak[gpu]) __atomic_store_n(&usage->peak[gpu], held, __ATOMIC_RELAXED);
}

static const char *take_slot(void) {
    bool ended;
    for (int round = 0; round < 2; round++, reap())
        for (int i = 0; i < GPUTILE_USAGE_SLOTS; i++) {
            if (usage->slot[i].pid || !file_lock(&slot_file, F_OFD_SETLK, GPUTILE_USAGE_LOCK_SLOTS + i, F_WRLCK))
                continue;
            for (unsigned gpu = 0; gpu < GPUTILE_MOST_GPUS; gpu++) usage->used[gpu][i] = 0;
            usage->slot[i].started = start_of(getpid(), &ended);
            /* First, because slots beyond `top` are not checked. The slot of a process that is killed here would be
             * lost. */
            if (usage->top <= (unsigned)i) __atomic_store_n(&usage->top, (unsigned)i + 1, __ATOMIC_RELEASE);
            __atomic_store_n(&usage->slot[i].pid, getpid(), __ATOMIC_RELEASE);
            own_slot = i;
            return NULL;
        }
    return "it has no free slot for another process";
}

static bool open_file(struct gputile_guarded_fd *file, const char *path) {
    gputile_guarded_fd_set(file, open(path, O_RDWR | O_CLOEXEC));
    return file->fd >= 0;
}

static void unmap(void) {
    if (usage) munmap(usage, sizeof *usage);
    usage = NULL, own_slot = NO_SLOT;
    gputile_guarded_fd_close(&lock_file);
}

static const char *map(const char *path) {
    /* The file is opened before the driver opens its descriptors. Linux closes the lowest number of an ending process
     * last, so the slot is unlocked only when the driver's memory is free. */
    if (!open_file(&slot_file, path) || !open_file(&lock_file, path))
        return errno == ENOENT ? "it does not exist" : strerror(errno);
    if (lseek(lock_file.fd, 0, SEEK_END) < GPUTILE_USAGE_BYTES) return "it is too short";
    void *mapped = mmap(NULL, sizeof(struct gputile_usage), PROT_READ | PROT_WRITE, MAP_SHARED, slot_file.fd, 0);
    if (mapped == MAP_FAILED) return strerror(errno);
    usage = mapped;
    snprintf(usage_path, sizeof usage_path, "%s", path);
    return NULL;
}

static const char *begin(void) {
    if (!file_lock(&lock_file, F_OFD_SETLKW, GPUTILE_USAGE_LOCK_ALL, F_WRLCK)) return strerror(errno);
    if (!usage->magic) { /* written last, so that the file is initialised again if this process is killed */
        usage->version = GPUTILE_USAGE_VERSION, usage->counts = GPUTILE_USAGE_COUNTS;
        __atomic_store_n(&usage->magic, GPUTILE_USAGE_MAGIC, __ATOMIC_RELEASE);
    }
    const char *wrong =
        usage->magic == GPUTILE_USAGE_MAGIC && usage->version == GPUTILE_USAGE_VERSION ? take_slot() : "it is damaged";
    file_lock(&lock_file, F_OFD_SETLK, GPUTILE_USAGE_LOCK_ALL, F_UNLCK);
    return wrong;
}

const char *gputile_shared_usage_open(const char *path) {
    const char *wrong = NULL;
    begin_alone();
    if (!usage && ((wrong = map(path)) || (wrong = begin()))) {
        unmap();
        gputile_guarded_fd_close(&slot_file);
    }
    end_alone();
    return wrong;
}

bool gputile_shared_usage_reserve(unsigned gpu, uint64_t bytes, uint64_t limit) {
    if (!bytes) return true; /* also above the limit, which a pool may have exceeded by its grain */
    if (!enter()) return false;
    uint64_t held = sum(gpu);
    if (held > limit || bytes > limit - held) reap(), held = sum(gpu);
    bool fits = held <= limit && bytes <= limit - held;
    if (fits) {
        __atomic_fetch_add(&usage->used[gpu][own_slot], bytes, __ATOMIC_RELAXED);
        note_peak(gpu, held + bytes);
    }
    leave();
    return fits;
}

void gputile_shared_usage_force(unsigned gpu, uint64_t bytes) {
    if (!enter()) return;
    __atomic_fetch_add(&usage->used[gpu][own_slot], bytes, __ATOMIC_RELAXED);
    note_peak(gpu, sum(gpu));
    leave();
}

void gputile_shared_usage_refused(unsigned gpu) {
    begin_alone();
    if (usage) __atomic_fetch_add(&usage->refused[gpu], 1, __ATOMIC_RELAXED);
    end_alone();
}

/* This needs no lock of the file, for which a process may have no free descriptor. Only this process writes its slot,
 * and a concurrent sum over the slots can only be too high. */
void gputile_shared_usage_return(unsigned gpu, uint64_t bytes) {
    begin_alone();
    if (usage) {
        uint64_t held = usage->used[gpu][own_slot];
        __atomic_store_n(&usage->used[gpu][own_slot], held > bytes ? held - bytes : 0, __ATOMIC_RELAXED);
    }
    end_alone();
}

uint64_t gputile_shared_usage_used(unsigned gpu) {
    if (!enter()) return UINT64_MAX;
    reap();
    uint64_t held = sum(gpu);
    leave();
    return held;
}

uint64_t gputile_shared_usage_own(unsigned gpu) {
    begin_alone();
    uint64_t held = usage ? __atomic_load_n(&usage->used[gpu][own_slot], __ATOMIC_RELAXED) : 0;
    end_alone();
    return held;
}

uint64_t gputile_shared_usage_context(unsigned gpu) {
    begin_alone();
    uint64_t bytes = usage ? __atomic_load_n(&usage->context[gpu], __ATOMIC_RELAXED) : 0;
    end_alone();
    return bytes;
}

void gputile_shared_usage_context_seen(unsigned gpu, uint64_t bytes) {
    begin_alone();
    uint64_t least = usage ? __atomic_load_n(&usage->context[gpu], __ATOMIC_RELAXED) : bytes;
    bool noted = false;
    while (!noted && (!least || bytes < least))
        noted =
            __atomic_compare_exchange_n(&usage->context[gpu], &least, bytes, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    end_alone();
}

uint64_t *gputile_shared_usage_word(unsigned gpu) { return usage ? &usage->word[gpu] : NULL; }

static void in_child(void) {
    unmap();
    slot_file =
        (struct gputile_guarded_fd)GPUTILE_GUARDED_FD_NONE; /* open until the child ends or executes another program */
    end_alone(); /* the forking thread holds the mutex, and is the only thread in the child */
}

static const struct gputile_fork_handlers handlers = {.order = GPUTILE_FORK_SHARED_USAGE,
                                                      .before = begin_alone,
                                                      .in_parent = end_alone,
                                                      .in_child = in_child};
static const struct gputile_fork_handlers *const registered GPUTILE_FORK_HANDLERS = &handlers;
