/* What stands in for turn.c where it is not linked, as in programs that test memory alone: everybody's turn. */
#include "turn.h"

__attribute__((weak)) int gputile_turn_start(const char *socket_path, unsigned card_count, const char *const *uuids) {
    (void)socket_path, (void)card_count, (void)uuids;
    return 0;
}

__attribute__((weak)) void gputile_turn_before(int card, void *stream) { (void)card, (void)stream; }

__attribute__((weak)) void gputile_turn_after(int card, void *stream) { (void)card, (void)stream; }

__attribute__((weak)) void gputile_turn_capture(int change) { (void)change; }
