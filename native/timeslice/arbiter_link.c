/* Sends and receives messages of 32 bytes, and never waits for the arbiter. */
#define _GNU_SOURCE
#include "timeslice/arbiter_link.h"

#include <endian.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "timeslice/gpu.h"

static void put(unsigned char *to, const struct arbiter_message *message) {
    uint16_t gpu = htole16(message->gpu);
    uint32_t turn = htole32(message->turn);
    uint64_t fields[3] = {htole64(message->a), htole64(message->b), 0};
    to[offsetof(struct arbiter_message, kind)] = message->kind;
    to[offsetof(struct arbiter_message, version)] = message->version;
    memcpy(to + offsetof(struct arbiter_message, gpu), &gpu, sizeof gpu);
    memcpy(to + offsetof(struct arbiter_message, turn), &turn, sizeof turn);
    memcpy(to + offsetof(struct arbiter_message, a), fields, sizeof fields);
}

static void get(const unsigned char *from, struct arbiter_message *message) {
    uint64_t fields[3];
    message->kind = from[offsetof(struct arbiter_message, kind)];
    message->version = from[offsetof(struct arbiter_message, version)];
    memcpy(&message->gpu, from + offsetof(struct arbiter_message, gpu), sizeof message->gpu);
    memcpy(&message->turn, from + offsetof(struct arbiter_message, turn), sizeof message->turn);
    memcpy(fields, from + offsetof(struct arbiter_message, a), sizeof fields);
    message->gpu = le16toh(message->gpu), message->turn = le32toh(message->turn);
    message->a = le64toh(fields[0]), message->b = le64toh(fields[1]), message->unused = le64toh(fields[2]);
}

void arbiter_link_close(struct arbiter_link *link) {
    gputile_guarded_fd_close(&link->socket);
    link->agreed = false, link->size = 0;
}

static void send_message(struct arbiter_link *link, const struct arbiter_message *message) {
    unsigned char bytes[ARBITER_MESSAGE_BYTES];
    put(bytes, message);
    /* A message is much smaller than the socket's buffer. If it does not fit, the arbiter does not read. */
    if (!gputile_guarded_fd_is_ours(&link->socket) ||
        send(link->socket.fd, bytes, ARBITER_MESSAGE_BYTES, MSG_NOSIGNAL | MSG_DONTWAIT) != ARBITER_MESSAGE_BYTES)
        arbiter_link_close(link);
}

bool arbiter_link_open(struct arbiter_link *link, const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct arbiter_message hello = {.kind = ARBITER_HELLO, .a = GPUTILE_ARBITER_VERSION, .b = GPUTILE_ARBITER_VERSION};
    strncpy(address.sun_path, path, sizeof address.sun_path - 1);
    gputile_guarded_fd_set(&link->socket, socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    link->agreed = false, link->size = 0, link->since = link->heard = timeslice_now();
    if (link->socket.fd < 0) return false;
    if (connect(link->socket.fd, (struct sockaddr *)&address, sizeof address) != 0) arbiter_link_close(link);
    else send_message(link, &hello);
    return link->socket.fd >= 0;
}

void arbiter_link_send(struct arbiter_link *link, uint8_t kind, unsigned gpu, uint32_t turn, uint64_t a, uint64_t b) {
    struct arbiter_message message = {
        .kind = kind, .version = GPUTILE_ARBITER_VERSION, .gpu = (uint16_t)gpu, .turn = turn, .a = a, .b = b};
    send_message(link, &message);
}

static int digit(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

void arbiter_link_gpu(struct arbiter_link *link, unsigned gpu, const char *uuid) {
    unsigned char bytes[16] = {0};
    uint64_t fields[2];
    unsigned digits = 0;
    for (const char *c = strchr(uuid, '-'); c && *c && digits < 32; c++)
        if (digit(*c) >= 0) bytes[digits / 2] = (unsigned char)(bytes[digits / 2] << 4 | digit(*c)), digits++;
    memcpy(fields, bytes, sizeof fields);
    arbiter_link_send(link, ARBITER_GPU, gpu, 0, le64toh(fields[0]), le64toh(fields[1]));
}

bool arbiter_link_receive(struct arbiter_link *link, struct arbiter_message *message) {
    if (link->socket.fd < 0) return false;
    if (!gputile_guarded_fd_is_ours(&link->socket)) return arbiter_link_close(link), false;
    if (link->size < ARBITER_MESSAGE_BYTES) {
        ssize_t got = recv(link->socket.fd, link->buffer + link->size, sizeof link->buffer - link->size, MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return arbiter_link_close(link), false;
        if (got > 0) link->size += (unsigned)got;
    }
    if (link->size < ARBITER_MESSAGE_BYTES) return false;
    get(link->buffer, message);
    link->size -= ARBITER_MESSAGE_BYTES;
    memmove(link->buffer, link->buffer + ARBITER_MESSAGE_BYTES, link->size);
    link->heard = timeslice_now();
    if (message->version == (message->kind == ARBITER_WELCOME ? 0 : GPUTILE_ARBITER_VERSION)) return true;
    arbiter_link_close(link);
    return false;
}
