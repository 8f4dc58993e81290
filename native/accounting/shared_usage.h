/* What all processes of an allocation hold on its GPUs, in one file that they share and nobody else has.
 *
 * Each process has a slot, which it keeps locked (fcntl, open file description) while it lives; only it writes what
 * it holds there. What a GPU's allocation holds is the sum over the slots, taken under the file's lock. So there is
 * no total that could disagree with its parts: a process killed at any point has either added its bytes or not.
 * A dead process's slot is emptied by whoever needs the room, once no child made by fork is left that has the driver's
 * descriptors of it. The same process after exec is another one, and a child made by fork has no slot until it opens
 * the file itself.
 */
#ifndef GPUTILE_SHARED_USAGE_H
#define GPUTILE_SHARED_USAGE_H

#include <stdbool.h>
#include <stdint.h>

/* Open the file and take a slot; return NULL, or what is wrong. Called again it does nothing. */
const char *gputile_shared_usage_open(const char *path);

/* Add `bytes` to what this process holds on a GPU if the allocation then holds no more than `limit`. */
bool gputile_shared_usage_reserve(unsigned gpu, uint64_t bytes, uint64_t limit);

/* Add `bytes`, limit or not: for memory that is already taken and cannot be given back. */
void gputile_shared_usage_force(unsigned gpu, uint64_t bytes);

/* Count a request that was refused for the limit. */
void gputile_shared_usage_refused(unsigned gpu);

/* Take `bytes` off what this process holds on a GPU. */
void gputile_shared_usage_return(unsigned gpu, uint64_t bytes);

/* What the allocation holds on a GPU, without the dead. */
uint64_t gputile_shared_usage_used(unsigned gpu);

/* What this process alone holds on a GPU. */
uint64_t gputile_shared_usage_own(unsigned gpu);

/* What a context takes at least, as far as the allocation's processes have seen: 0 while they have seen none. */
uint64_t gputile_shared_usage_context(unsigned gpu);
void gputile_shared_usage_context_seen(unsigned gpu, uint64_t bytes);

/* A word of the allocation for a GPU, which all of its processes change atomically (account.c); NULL before the file
 * is open. */
uint64_t *gputile_shared_usage_word(unsigned gpu);

#endif
