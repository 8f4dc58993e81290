/* Waits for a turn on a GPU. The node's arbiter decides which container may submit work.
 *
 * `gpu` is the index of a GPU in the limits file. The context of the submission must be current. Any thread may call
 * `before` and `after`. These two functions cannot fail.
 */
#ifndef GPUTILE_TIMESLICE_H
#define GPUTILE_TIMESLICE_H

/* To be called once in a process, after the limits were read and before work is submitted. `uuids` must live as long as
 * the process. Returns 0, or -1 if this process must not submit work. */
int timeslice_start(const char *socket_path, unsigned gpu_count, const char *const *uuids);

/* To be called before work is submitted to a GPU. May block. */
void timeslice_before(int gpu);

/* To be called after the submitting call has returned, also after an error. */
void timeslice_after(int gpu);

#endif
