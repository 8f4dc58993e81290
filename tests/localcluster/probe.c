/* What the tests' containers run. Without an argument it waits until it is asked to end, as a pause container does;
 * "show" prints the environment and the limits file first; "once" prints them and ends. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

static void show_limits(void) {
    char line[4096];
    FILE *file = fopen("/etc/gputile/allocation/limits.json", "r");
    if (!file) return;
    size_t size = fread(line, 1, sizeof line - 1, file);
    line[size] = '\0';
    fclose(file);
    printf("PROBE_LIMITS=%s\n", line);
}

int main(int count, char **arguments) {
    sigset_t ends;
    int number;
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGINT);
    sigprocmask(SIG_BLOCK, &ends, NULL); /* the first process of a container dies of no signal that it does not take */
    if (count > 1) {
        for (char **entry = environ; *entry; entry++) puts(*entry);
        show_limits();
        puts("PROBE_DONE=1");
        fflush(stdout);
        if (!strcmp(arguments[1], "once")) return 0;
    }
    sigwait(&ends, &number);
    return 0;
}
