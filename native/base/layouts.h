/* The form of the container's files and messages: what C and Python have in common.
 * Made by `make layouts` from src/gputile/node/native_layouts.py, which says what the constants mean. */
#ifndef GPUTILE_LAYOUTS_H
#define GPUTILE_LAYOUTS_H

#include <stddef.h>
#include <stdint.h>

enum {
    GPUTILE_MOST_GPUS = 16,
    GPUTILE_UUID_SIZE = 64,
    GPUTILE_LIMITS_MOST_BYTES = 8192,
    GPUTILE_SOCKET_PATH_SIZE = 108,
    GPUTILE_USAGE_VERSION = 1,
    GPUTILE_USAGE_MAGIC = 0x65747067,
    GPUTILE_USAGE_COUNTS = 1,
    GPUTILE_USAGE_SLOTS = 512,
    GPUTILE_USAGE_BYTES = 262144,
    GPUTILE_USAGE_LOCK_ALL = 262144,
    GPUTILE_USAGE_LOCK_SLOTS = 262145,
    GPUTILE_ARBITER_VERSION = 1,
    GPUTILE_SHARE_WHOLE = 1000000,
    ARBITER_HELLO = 1,
    ARBITER_GPU = 2,
    ARBITER_WANT = 3,
    ARBITER_BUSY = 4,
    ARBITER_DONE = 5,
    ARBITER_WELCOME = 65,
    ARBITER_TURN = 66,
    ARBITER_LIMIT = 67,
    ARBITER_WAIT = 68,
    ARBITER_MESSAGE_BYTES = 32,
};
#define GPUTILE_LIMITS_NAME      "gputile"
#define GPUTILE_LIMITS_VERSION   "1"
#define GPUTILE_LIMITS_GPU       "card"
#define GPUTILE_LIMITS_OVERHEAD  "overhead"
#define GPUTILE_LIMITS_SOCKET    "turn"
#define GPUTILE_LIMITS_END       "end"
#define GPUTILE_SHARE_FIRST_LINE "gputile-share 1"
#define GPUTILE_SHARE_QUANTUM    "quantum"
#define GPUTILE_SHARE_GPU        "card"
#define GPUTILE_SHARE_END        "end"

struct arbiter_message {
    uint8_t kind;
    uint8_t version;
    uint16_t gpu;
    uint32_t turn;
    uint64_t a;
    uint64_t b;
    uint64_t unused;
};
_Static_assert(sizeof(struct arbiter_message) == 32, "arbiter_message");
_Static_assert(offsetof(struct arbiter_message, kind) == 0, "arbiter_message.kind");
_Static_assert(offsetof(struct arbiter_message, version) == 1, "arbiter_message.version");
_Static_assert(offsetof(struct arbiter_message, gpu) == 2, "arbiter_message.gpu");
_Static_assert(offsetof(struct arbiter_message, turn) == 4, "arbiter_message.turn");
_Static_assert(offsetof(struct arbiter_message, a) == 8, "arbiter_message.a");
_Static_assert(offsetof(struct arbiter_message, b) == 16, "arbiter_message.b");
_Static_assert(offsetof(struct arbiter_message, unused) == 24, "arbiter_message.unused");

struct gputile_usage_slot {
    int32_t pid; /* 0: free. In the container's namespace, where all of its processes see each other */
    uint32_t unused;
    uint64_t started; /* clock ticks after boot, /proc/<pid>/stat */
};
_Static_assert(sizeof(struct gputile_usage_slot) == 16, "gputile_usage_slot");
_Static_assert(offsetof(struct gputile_usage_slot, pid) == 0, "gputile_usage_slot.pid");
_Static_assert(offsetof(struct gputile_usage_slot, unused) == 4, "gputile_usage_slot.unused");
_Static_assert(offsetof(struct gputile_usage_slot, started) == 8, "gputile_usage_slot.started");

struct gputile_usage {
    uint32_t magic;
    uint32_t version;
    uint32_t top; /* slots from here on were never taken */
    uint32_t counts; /* 1: peak and refused are counted; a library from before them leaves 0 */
    struct gputile_usage_slot slot[512];
    uint64_t used[16][512]; /* bytes */
    uint64_t word[16]; /* the container's account of each GPU's time */
    uint64_t peak[16]; /* the most that was held at once, bytes */
    uint64_t refused[16]; /* requests for memory that the limit refused */
    uint64_t context[16]; /* the least that a process's first context took, bytes; 0: not known yet */
};
_Static_assert(sizeof(struct gputile_usage) == 74256, "gputile_usage");
_Static_assert(offsetof(struct gputile_usage, magic) == 0, "gputile_usage.magic");
_Static_assert(offsetof(struct gputile_usage, version) == 4, "gputile_usage.version");
_Static_assert(offsetof(struct gputile_usage, top) == 8, "gputile_usage.top");
_Static_assert(offsetof(struct gputile_usage, counts) == 12, "gputile_usage.counts");
_Static_assert(offsetof(struct gputile_usage, slot) == 16, "gputile_usage.slot");
_Static_assert(offsetof(struct gputile_usage, used) == 8208, "gputile_usage.used");
_Static_assert(offsetof(struct gputile_usage, word) == 73744, "gputile_usage.word");
_Static_assert(offsetof(struct gputile_usage, peak) == 73872, "gputile_usage.peak");
_Static_assert(offsetof(struct gputile_usage, refused) == 74000, "gputile_usage.refused");
_Static_assert(offsetof(struct gputile_usage, context) == 74128, "gputile_usage.context");

#endif
