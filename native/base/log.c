/* Writes a line of at most 512 bytes with one system call, so that lines of several threads do not mix. */
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

void gputile_log(const char *format, ...) {
    char text[512];
    va_list arguments;
    int length = snprintf(text, sizeof text, "gputile: ");
    va_start(arguments, format);
    length += vsnprintf(text + length, sizeof text - (size_t)length, format, arguments);
    va_end(arguments);
    if (length > (int)sizeof text - 1) length = (int)sizeof text - 1;
    text[length++] = '\n';
    if (write(STDERR_FILENO, text, (size_t)length) < 0) return; /* the message cannot be written anywhere else */
}
