/* A libcuda.so.1 without a GPU. It simulates the memory and the time of GPUs for all processes of a machine together.
 *
 * The environment variable GPUTILE_FAKE_CUDA names the machine's file, which every process maps. tests/fakes/cuda.py
 * creates this file. The memory of a dead process is freed, as by the kernel driver.
 */
#ifndef GPUTILE_SIMULATED_H
#define GPUTILE_SIMULATED_H

#include "base/cuda_types.h"
#include "simulated/layouts.h"
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

enum { CUDA_ERROR_INVALID_CONTEXT = 201, CUDA_ERROR_INVALID_HANDLE = 400 };
#define SIMULATED_MIB ((size_t)1 << 20)
#define POOL_CHUNK    (32 * SIMULATED_MIB)
#define EXPORT        __attribute__((visibility("default")))

CUresult cuInit(unsigned flags);

struct context {
    int device, users;
    bool primary, gone;
    size_t extra;
    struct context *spare;
};
struct stream {
    struct context *context;
    bool per_thread;
    uint64_t done_at_ns;
    int capturing;
    struct graph *graph;
};

extern struct simulated_machine *machine;
extern pthread_mutex_t simulated_mutex; /* guards the tables of this process */
/* A forked child has none of its parent's objects. */
void memory_in_child(void);
void graphs_in_child(void);
void contexts_in_child(void);
void work_in_child(void);

/* machine.c */
CUresult simulated_open(void);
int visible_count(void);
struct simulated_gpu *gpu_of(int device);
CUresult take(int device, size_t bytes);
void give(int device, size_t bytes);
size_t used_on(int device);
void account_work(int device, uint64_t ns, bool kernel);

/* The callbacks of a profiler (CUPTI). Some of the driver's functions call the subscriber at their beginning. */
void announce(const char *call);

/* context.c */
struct context *current_context(void);
/* Abort if a context is used during or after its destruction, because the real driver's behaviour is undefined then. */
void must_live(const struct context *context, const char *call);
int current_device(void);

/* memory.c */
CUdeviceptr add_block(int device, size_t bytes);
CUresult pool_take(CUmemoryPool pool, size_t bytes);
CUmemoryPool default_pool(int device);
void trim_pools(int device);

/* work.c */
uint64_t now_ns(void);
struct stream *stream_of(CUstream stream);
int device_of(struct stream *stream);
void submit(CUstream stream, uint64_t ns, bool kernel);
void finish(CUstream stream);

/* graph.c */
CUdeviceptr capture_alloc(struct stream *stream, int device, size_t bytes);
void capture_work(struct stream *stream, uint64_t ns);

#endif
