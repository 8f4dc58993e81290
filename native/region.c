#define _GNU_SOURCE
#include "region.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "limits.h"
#include "owned.h"

#ifndef F_OFD_GETLK
enum { F_OFD_GETLK = 36, F_OFD_SETLK = 37, F_OFD_SETLKW = 38 };
#endif

enum { MAGIC = 0x65747067, VERSION = 1, NO_SLOT = -1 };
/* Bytes behind the file's end that are only ever locked: one for all slots, then one for each. */
enum { LOCK_ALL = GPUTILE_REGION_BYTES, LOCK_SLOTS };

struct slot {
    int32_t pid; /* 0: free. In the namespace of the container, where all of its processes see each other. */
    uint32_t unused;
    uint64_t started; /* clock ticks after boot, /proc/<pid>/stat */
};

struct region {
    uint32_t magic, version, top, unused; /* top: slots from here on were never taken */
    struct slot slot[GPUTILE_REGION_SLOTS];
    uint64_t used[GPUTILE_MOST_CARDS][GPUTILE_REGION_SLOTS]; /* bytes */
    uint64_t word[GPUTILE_MOST_CARDS];
};
_Static_assert(sizeof(struct region) <= GPUTILE_REGION_BYTES, "the region does not fit into its file");

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* a file's lock does not keep threads apart */
static int cancelling; /* of the thread that has the mutex */
static struct region *region;
static char region_path[256];
/* Two descriptions of the same file. With one it is locked for a moment. The other is what the region is mapped
 * from and what the slot is locked with: a program that closes the number does not lose that lock. A child made by
 * fork keeps it open, as it does the driver's descriptors: the driver frees a process's memory when the last of them
 * is closed. */
static struct owned region_file = GPUTILE_OWNS_NOTHING, slot_file = GPUTILE_OWNS_NOTHING;
static int own_slot = NO_SLOT;

static bool file_lock(const struct owned *file, int command, off_t start, short type) {
    struct flock range = {.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = 1};
    int result;
    do result = fcntl(file->fd, command, &range);
    while (result == -1 && errno == EINTR);
    if (command == F_OFD_GETLK) return result == 0 && range.l_type != F_UNLCK;
    return result == 0;
}

/* A program that closes descriptors it does not know closes ours; a number of another file must not be locked. */
static bool still_open(void) {
    if (gputile_owns(&region_file)) return true;
    struct owned again;
    gputile_own(&again, open(region_path, O_RDWR | O_CLOEXEC));
    if (again.fd < 0) return false;
    if (again.inode != region_file.inode || again.device != region_file.device) return gputile_disown(&again), false;
    region_file = again;
    return true;
}

/* A thread that is cancelled in here would take the mutex along. */
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
    if (region && still_open() && file_lock(&region_file, F_OFD_SETLKW, LOCK_ALL, F_WRLCK)) return true;
    end_alone();
    return false;
}

static void leave(void) {
    file_lock(&region_file, F_OFD_SETLK, LOCK_ALL, F_UNLCK);
    end_alone();
}

/* When a process started, and whether it has ended (a zombie holds no memory); 0 if /proc does not tell. */
static uint64_t start_of(int pid, bool *ended) {
    char path[32], text[1024], *at;
    *ended = false;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    text[length > 0 ? length : 0] = '\0';
    at = strrchr(text, ')'); /* the name before it may hold anything */
    if (!at || at[1] != ' ') return 0;
    *ended = at[2] == 'Z' || at[2] == 'X';
    for (int field = 2; at && field < 22; field++) {
        at = strchr(at + 1, ' ');
        /* A first thread that ended is a zombie while others of the process still end, and hold the driver's memory. */
        if (at && field == 19 && strtoull(at + 1, NULL, 10) > 1) *ended = false;
    }
    return at ? strtoull(at + 1, NULL, 10) : 0;
}

/* Whether a process has address space: it has none any more while it ends. */
static bool runs_a_program(int pid) {
    char path[32], byte;
    snprintf(path, sizeof path, "/proc/%d/maps", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false; /* not known: that of another user */
    bool found = read(fd, &byte, 1) == 1;
    close(fd);
    return found;
}

/* Dead: no process has its lock any more, and it has ended, or become another program by exec. The lock alone would
 * mislead: of what an ending process has, it may go before the driver's memory does. */
static bool is_dead(int index) {
    const struct slot *slot = &region->slot[index];
    bool ended;
    if (!slot->pid || index == own_slot || file_lock(&region_file, F_OFD_GETLK, LOCK_SLOTS + index, F_WRLCK)) return false;
    if (slot->pid == getpid()) return true; /* what this process was before exec */
    if (kill(slot->pid, 0) == -1 && errno == ESRCH) return true;
    uint64_t started = start_of(slot->pid, &ended);
    return ended || (started && (started != slot->started || runs_a_program(slot->pid)));
}

static void reap(void) {
    for (unsigned i = 0; i < region->top && i < GPUTILE_REGION_SLOTS; i++) {
        if (!is_dead((int)i)) continue;
        for (unsigned card = 0; card < GPUTILE_MOST_CARDS; card++) region->used[card][i] = 0;
        region->slot[i].pid = 0;
    }
}

static uint64_t sum(unsigned card) {
    uint64_t total = 0;
    for (unsigned i = 0; i < region->top && i < GPUTILE_REGION_SLOTS; i++)
        if (__builtin_add_overflow(total, region->used[card][i], &total)) return UINT64_MAX;
    return total;
}

static const char *take_slot(void) {
    bool ended;
    for (int round = 0; round < 2; round++, reap())
        for (int i = 0; i < GPUTILE_REGION_SLOTS; i++) {
            if (region->slot[i].pid || !file_lock(&slot_file, F_OFD_SETLK, LOCK_SLOTS + i, F_WRLCK)) continue;
            for (unsigned card = 0; card < GPUTILE_MOST_CARDS; card++) region->used[card][i] = 0;
            region->slot[i].started = start_of(getpid(), &ended);
            region->slot[i].pid = getpid();
            if (region->top <= (unsigned)i) region->top = (unsigned)i + 1;
            own_slot = i;
            return NULL;
        }
    return "it has no room for one more process";
}

static bool open_file(struct owned *file, const char *path) {
    gputile_own(file, open(path, O_RDWR | O_CLOEXEC));
    return file->fd >= 0;
}

static void unmap(void) {
    if (region) munmap(region, sizeof *region);
    region = NULL, own_slot = NO_SLOT;
    gputile_disown(&region_file);
}

static const char *map(const char *path) {
    /* Before the driver opens its own: of an ending process Linux lets go of the lowest number last, so the slot is
     * seen as free when the driver's memory is. */
    if (!open_file(&slot_file, path) || !open_file(&region_file, path))
        return errno == ENOENT ? "it does not exist" : strerror(errno);
    if (lseek(region_file.fd, 0, SEEK_END) < GPUTILE_REGION_BYTES) return "it is too short";
    void *mapped = mmap(NULL, sizeof(struct region), PROT_READ | PROT_WRITE, MAP_SHARED, slot_file.fd, 0);
    if (mapped == MAP_FAILED) return strerror(errno);
    region = mapped;
    snprintf(region_path, sizeof region_path, "%s", path);
    return NULL;
}

static const char *begin(void) {
    if (!file_lock(&region_file, F_OFD_SETLKW, LOCK_ALL, F_WRLCK)) return strerror(errno);
    if (!region->magic && !region->version) region->version = VERSION, region->magic = MAGIC;
    const char *wrong = region->magic == MAGIC && region->version == VERSION ? take_slot() : "it is damaged";
    file_lock(&region_file, F_OFD_SETLK, LOCK_ALL, F_UNLCK);
    return wrong;
}

const char *gputile_region_open(const char *path) {
    const char *wrong = NULL;
    begin_alone();
    if (!region && ((wrong = map(path)) || (wrong = begin()))) {
        unmap();
        gputile_disown(&slot_file);
    }
    end_alone();
    return wrong;
}

bool gputile_region_reserve(unsigned card, uint64_t bytes, uint64_t limit) {
    if (!bytes) return true; /* whatever is held: a pool may have grown over the limit by its own grain */
    if (!enter()) return false;
    uint64_t held = sum(card);
    if (held > limit || bytes > limit - held) reap(), held = sum(card);
    bool fits = held <= limit && bytes <= limit - held;
    if (fits) __atomic_fetch_add(&region->used[card][own_slot], bytes, __ATOMIC_RELAXED);
    leave();
    return fits;
}

void gputile_region_force(unsigned card, uint64_t bytes) {
    if (!enter()) return;
    __atomic_fetch_add(&region->used[card][own_slot], bytes, __ATOMIC_RELAXED);
    leave();
}

void gputile_region_return(unsigned card, uint64_t bytes) {
    if (!enter()) return;
    uint64_t held = region->used[card][own_slot];
    __atomic_store_n(&region->used[card][own_slot], held > bytes ? held - bytes : 0, __ATOMIC_RELAXED);
    leave();
}

uint64_t gputile_region_used(unsigned card) {
    if (!enter()) return UINT64_MAX;
    reap();
    uint64_t held = sum(card);
    leave();
    return held;
}

uint64_t *gputile_region_word(unsigned card) { return region ? &region->word[card] : NULL; }

void gputile_region_before_fork(void) { begin_alone(); }
void gputile_region_in_parent(void) { end_alone(); }
void gputile_region_in_child(void) {
    unmap();
    slot_file = (struct owned)GPUTILE_OWNS_NOTHING; /* open until the child ends or becomes another program */
    end_alone(); /* the thread that forked has the mutex, and is the one that goes on here */
}
