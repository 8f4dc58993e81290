/* What the tests' containers run. Without an argument it waits until it is asked to end, as a pause container does;
 * "show" prints the environment and the limits file first; "once" prints them and ends. "leave" does to the one file of
 * the node that it can write what a hostile root would: it makes it setuid, as long as it can be, and gives it as many
 * extended attributes as it can have. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

extern char **environ;

static void show_limits(void) {
    static char line[1 << 16];
    FILE *file = fopen("/etc/gputile/allocation/limits.json", "r");
    if (!file) return;
    size_t size = fread(line, 1, sizeof line - 1, file);
    line[size] = '\0';
    fclose(file);
    printf("PROBE_LIMITS=%s\n", line);
}

static void take_what_there_is(void) {
    static char block[1 << 16];
    int to = open("/etc/gputile/usage", O_WRONLY);
    if (fchmod(to, 04755)) printf("PROBE_CHMOD=%s\n", strerror(errno));
    lseek(to, 0, SEEK_END);
    long written = 0;
    while (written < 1L << 32) { /* more than there is anywhere */
        ssize_t got = write(to, block, sizeof block);
        if (got <= 0) break;
        written += got;
    }
    printf("PROBE_GROWN=%ld\nPROBE_ENDED=%s\n", written, strerror(errno));
    long attributes = 0;
    char name[32];
    while (attributes < 1L << 24) { /* 16 MiB */
        snprintf(name, sizeof name, "user.%ld", attributes);
        if (fsetxattr(to, name, block, 1024, 0)) break;
        attributes += 1024;
    }
    printf("PROBE_ATTRIBUTES=%ld\n", attributes);
}

int main(int count, char **arguments) {
    sigset_t ends;
    int number;
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGINT);
    sigprocmask(SIG_BLOCK, &ends, NULL); /* the first process of a container dies of no signal that it does not take */
    if (count > 1) {
        if (!strcmp(arguments[1], "leave")) take_what_there_is();
        for (char **entry = environ; *entry; entry++) puts(*entry);
        show_limits();
        puts("PROBE_DONE=1");
        fflush(stdout);
        if (!strcmp(arguments[1], "once")) return 0;
    }
    sigwait(&ends, &number);
    return 0;
}
