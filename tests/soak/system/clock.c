/* A clock of its own for one process: preloaded, it moves the time of day (CLOCK_REALTIME) by the seconds that the file
 * GPUTILE_SOAK_CLOCK names, while the file changes. The monotonic clock stays. Waits that end at a time of day are moved
 * back, as they would be if the machine's clock had jumped. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile long *seconds;

__attribute__((constructor)) static void map_clock(void) {
    const char *path = getenv("GPUTILE_SOAK_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *mapped = mmap(NULL, sizeof(long), PROT_READ, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED) seconds = mapped;
    close(file);
}

static long jump(void) { return seconds ? *seconds : 0; }

static void *next(void **known, const char *name) {
    if (!*known) *known = dlsym(RTLD_NEXT, name);
    return *known;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static void *real;
    int result = ((int (*)(clockid_t, struct timespec *))next(&real, "clock_gettime"))(clock, now);
    if (!result && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += jump();
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    struct timespec fine;
    int result = clock_gettime(CLOCK_REALTIME, &fine);
    now->tv_sec = fine.tv_sec;
    now->tv_usec = fine.tv_nsec / 1000;
    return result;
}

time_t time(time_t *where) {
    struct timespec fine;
    clock_gettime(CLOCK_REALTIME, &fine);
    if (where) *where = fine.tv_sec;
    return fine.tv_sec;
}

/* A time of day has ten digits; the monotonic clock is far from that. */
static struct timespec moved(const struct timespec *until) {
    struct timespec back = *until;
    if (back.tv_sec > 1000000000) back.tv_sec -= jump();
    return back;
}

int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until) {
    static void *real;
    struct timespec back = moved(until);
    typedef int (*Wait)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    return ((Wait)next(&real, "pthread_cond_timedwait"))(condition, mutex, &back);
}

int sem_timedwait(sem_t *semaphore, const struct timespec *until) {
    static void *real;
    struct timespec back = moved(until);
    return ((int (*)(sem_t *, const struct timespec *))next(&real, "sem_timedwait"))(semaphore, &back);
}

long syscall(long number, ...) {
    static void *real;
    long given[6];
    va_list rest;
    va_start(rest, number);
    for (int i = 0; i < 6; i++) given[i] = va_arg(rest, long);
    va_end(rest);
    struct timespec back;
    if (number == SYS_futex && (given[1] & FUTEX_CLOCK_REALTIME) && given[3]) {
        back = moved((const struct timespec *)given[3]);
        given[3] = (long)&back;
    }
    typedef long (*Call)(long, ...);
    return ((Call)next(&real, "syscall"))(number, given[0], given[1], given[2], given[3], given[4], given[5]);
}
