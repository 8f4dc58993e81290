/* Waiting for a turn on a GPU: who may submit work now is decided by the node's time arbiter, not in this process.
 *
 * `gpu` counts the GPUs of the limits file from 0, in its order. The context of the submission is current. Any thread
 * may call `before` and `after`, and they cannot fail.
 */
#ifndef GPUTILE_TIMESLICE_H
#define GPUTILE_TIMESLICE_H

/* Once in a process, after the limits were read and before any work is submitted; `uuids` lives as long as the
 * process. Returns 0, or -1 if this process must not submit work at all. */
int timeslice_start(const char *socket_path, unsigned gpu_count, const char *const *uuids);

/* Before work is submitted on a GPU; may block. */
void timeslice_before(int gpu);

/* After the submitting call returned, whatever it returned. */
void timeslice_after(int gpu);

#endif
