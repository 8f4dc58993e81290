/* The memory of all processes of an allocation on its GPUs, in a file that only these processes share.
 *
 * Each process has a slot, which it keeps locked (fcntl, open file description) while it lives. Only this process
 * writes its memory there. The memory of the allocation is the sum over the slots, which is computed under the file's
 * lock. So the total always agrees with its parts, even if a process is killed at any point. The slot of a dead process
 * is emptied when its memory is needed, and when no forked child has the driver's descriptors any more. After exec, a
 * process counts as another process. A forked child has no slot until it opens the file itself.
 */
#ifndef GPUTILE_SHARED_USAGE_H
#define GPUTILE_SHARED_USAGE_H

#include <stdbool.h>
#include <stdint.h>

/* Open the file and lock a free slot. Returns NULL, or a description of the error. Further calls do nothing. */
const char *gputile_shared_usage_open(const char *path);

/* Add `bytes` to this process's memory on a GPU, unless the allocation's memory would exceed `limit`. */
bool gputile_shared_usage_reserve(unsigned gpu, uint64_t bytes, uint64_t limit);

/* Add `bytes` regardless of the limit, because the memory is already allocated and cannot be freed. */
void gputile_shared_usage_force(unsigned gpu, uint64_t bytes);

/* Count a request that was refused because of the limit. */
void gputile_shared_usage_refused(unsigned gpu);

/* Subtract `bytes` from this process's memory on a GPU. */
void gputile_shared_usage_return(unsigned gpu, uint64_t bytes);

/* The allocation's memory on a GPU, without the memory of dead processes. */
uint64_t gputile_shared_usage_used(unsigned gpu);

/* This process's memory on a GPU. */
uint64_t gputile_shared_usage_own(unsigned gpu);

/* The minimum memory of a context that the allocation's processes have measured, or 0 before the first context. */
uint64_t gputile_shared_usage_context(unsigned gpu);
void gputile_shared_usage_context_seen(unsigned gpu, uint64_t bytes);

/* The allocation's account of a GPU's time, which its processes change atomically (account.c). It is NULL before the
 * file is open. */
uint64_t *gputile_shared_usage_word(unsigned gpu);

#endif
