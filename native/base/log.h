/* Writes messages for the user of a container to standard error. */
#ifndef GPUTILE_LOG_H
#define GPUTILE_LOG_H

/* Write a line that begins with "gputile: ". */
void gputile_log(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
