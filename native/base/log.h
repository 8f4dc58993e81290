/* Messages on standard error that the user of a container has to know. */
#ifndef GPUTILE_LOG_H
#define GPUTILE_LOG_H

/* Write one line, "gputile: " before it. */
void gputile_log(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
