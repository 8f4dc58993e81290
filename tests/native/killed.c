/* Kills a process at each point of its work on the container's account, and looks whether the account is still whole.
 *
 * Usage: killed <usage file> <how> <neighbour>. "calls": before and after each system call. "changes": after each
 * instruction that has changed the file. With <neighbour> 1 another process holds memory all the while, with 0 the one
 * that is killed is the first to open the file. Prints at how many points it was killed.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "accounting/shared_usage.h"
#include "base/layouts.h"

enum { LIMIT = 100, NEIGHBOURS = 10, MOST_SECONDS = 60 };

static const char *path;
static struct gputile_usage *table, before;

static void check(bool true_, const char *what, int point) {
    if (true_) return;
    printf("point %d: %s\n", point, what);
    exit(1);
}

/* Everything that is written to the file: a slot, memory that is reserved, forced and returned, a word. */
static void work(void) {
    if (gputile_shared_usage_open(path)) _exit(2);
    if (!gputile_shared_usage_reserve(0, 7, LIMIT)) _exit(2);
    gputile_shared_usage_force(1, 3);
    gputile_shared_usage_return(0, 5);
    if (gputile_shared_usage_used(0) > LIMIT) _exit(2);
    _exit(0);
}

static pid_t forked(void (*does)(void)) {
    pid_t child = fork();
    if (child) return child;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(MOST_SECONDS);
    does();
    _exit(0);
}

static void traced(void) {
    if (ptrace(PTRACE_TRACEME, 0, NULL, NULL)) _exit(3);
    raise(SIGSTOP);
    work();
}

static void neighbour(void) {
    if (gputile_shared_usage_open(path) || !gputile_shared_usage_reserve(0, NEIGHBOURS, LIMIT)) _exit(2);
    raise(SIGSTOP);
}

static bool changed(void) {
    if (!memcmp(table, &before, sizeof before)) return false;
    before = *table;
    return true;
}

/* Kill a process at its nth point; return false if it had ended before. */
static bool killed(bool at_calls, int nth) {
    int status;
    pid_t victim = forked(traced);
    if (waitpid(victim, &status, 0) != victim || !WIFSTOPPED(status)) exit(3);
    before = *table;
    for (int point = 0; point < nth;) {
        if (ptrace(at_calls ? PTRACE_SYSCALL : PTRACE_SINGLESTEP, victim, NULL, NULL)) exit(3);
        if (waitpid(victim, &status, 0) != victim) exit(3);
        if (WIFEXITED(status)) {
            check(WEXITSTATUS(status) == 0, "the work ended with an error", point);
            return false;
        }
        check(WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP, "it was stopped by another signal", point);
        point += at_calls || changed();
    }
    kill(victim, SIGKILL);
    if (waitpid(victim, &status, 0) != victim) exit(3);
    return true;
}

static int taken;

/* What the next process of the container finds. */
static void next(void) {
    const char *wrong = gputile_shared_usage_open(path);
    if (wrong) printf("the file: %s\n", wrong);
    if (wrong) _exit(2);
    if (gputile_shared_usage_used(0) != (uint64_t)taken) _exit(4);
    if (gputile_shared_usage_used(1) != 0) _exit(5);
    if (gputile_shared_usage_reserve(0, (uint64_t)(LIMIT - taken + 1), LIMIT)) _exit(6);
    if (!gputile_shared_usage_reserve(0, (uint64_t)(LIMIT - taken), LIMIT)) _exit(7);
}

static void make_anew(void) {
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0666);
    if (fd < 0 || ftruncate(fd, GPUTILE_USAGE_BYTES)) exit(3);
    table = mmap(NULL, sizeof *table, PROT_READ, MAP_SHARED, fd, 0);
    if (table == MAP_FAILED) exit(3);
    close(fd);
}

int main(int count, char **word) {
    int point = 1, status;
    if (count < 4) return 3;
    path = word[1];
    taken = atoi(word[3]) ? NEIGHBOURS : 0;
    setbuf(stdout, NULL);
    for (bool more = true; more; point++) {
        make_anew();
        pid_t other = taken ? forked(neighbour) : 0;
        if (other && (waitpid(other, &status, WUNTRACED) != other || !WIFSTOPPED(status))) return 3;
        more = killed(!strcmp(word[2], "calls"), point);
        for (unsigned i = table->top; i < GPUTILE_USAGE_SLOTS; i++)
            check(!table->slot[i].pid, "a slot is taken where nobody looks", point);
        pid_t last = forked(next);
        if (waitpid(last, &status, 0) != last) return 3;
        if (status) printf("%d\n", status);
        check(status == 0, "the next process does not find what is there", point);
        if (other) kill(other, SIGKILL), waitpid(other, &status, 0);
        munmap(table, sizeof *table);
    }
    printf("%d\n", point - 2);
    return 0;
}
