/* Counts the memory of graphs. When a graph is launched, its allocation nodes allocate from a pool of the GPU. They
 * need at most the sum of their bytes, which is computed when the graph is instantiated. */
#include <stdlib.h>

#include "accounting/allocation_table.h"
#include "accounting/memory_location.h"
#include "accounting/pools.h"
#include "base/driver.h"
#include "base/layouts.h"
#include "hooks/current_gpu.h"
#include "hooks/hook_table.h"
#include "hooks/init.h"
#include "timeslice/timeslice.h"

enum { MOST_DEPTH = 16 };

/* The bytes that a graph allocates on each device. */
struct sums {
    uint64_t of[GPUTILE_MOST_GPUS];
};

static bool add_to(struct sums *sums, const CUDA_MEM_ALLOC_NODE_PARAMS *node) {
    CUdevice device = gputile_device_at(&node->poolProps.location);
    if (gputile_on_host(&node->poolProps.location)) return true;
    return device >= 0 && device < gputile_device_count() &&
           !__builtin_add_overflow(sums->of[device], node->bytesize, &sums->of[device]);
}

/* Add the allocations of a graph and its child graphs. Returns false if they are unknown. */
static bool add_asked(CUgraph graph, int depth, struct sums *sums) {
    const struct gputile_driver *driver = gputile_driver();
    bool told = true;
    size_t count = 0;
    if (depth == MOST_DEPTH || driver->cuGraphGetNodes(graph, NULL, &count) != CUDA_SUCCESS) return false;
    CUgraphNode *nodes = count ? malloc(count * sizeof *nodes) : NULL;
    if (count && (!nodes || driver->cuGraphGetNodes(graph, nodes, &count) != CUDA_SUCCESS)) return free(nodes), false;
    for (size_t i = 0; i < count && told; i++) {
        CUDA_MEM_ALLOC_NODE_PARAMS params;
        CUgraph child;
        int type;
        if (driver->cuGraphNodeGetType(nodes[i], &type) != CUDA_SUCCESS) told = false;
        else if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
            told = driver->cuGraphMemAllocNodeGetParams(nodes[i], &params) == CUDA_SUCCESS && add_to(sums, &params);
        else if (type == CU_GRAPH_NODE_TYPE_GRAPH)
            told = driver->cuGraphChildGraphNodeGetGraph(nodes[i], &child) == CUDA_SUCCESS &&
                   add_asked(child, depth + 1, sums);
    }
    free(nodes);
    return told;
}

/* If the amount is unknown, it is more than any GPU has. */
static struct sums asked_by(CUgraph graph) {
    struct sums sums = {{0}};
    if (gputile_driver()->cuGraphMemAllocNodeGetParams && !add_asked(graph, 0, &sums)) sums.of[0] = UINT64_MAX;
    return sums;
}

/* The key of an executable graph on one device. The highest byte, which addresses leave free, is the device. */
static uint64_t key_of(CUgraphExec exec, CUdevice device) { return (uintptr_t)exec ^ (uint64_t)device << 56; }

static CUresult remember(CUresult result, const CUgraphExec *exec, CUgraph graph) {
    if (result != CUDA_SUCCESS) return result;
    const struct sums sums = asked_by(graph);
    for (CUdevice device = 0; device < GPUTILE_MOST_GPUS; device++)
        if (sums.of[device])
            gputile_allocation_add(
                (struct gputile_allocation){GPUTILE_EXEC, key_of(*exec, device), -1, sums.of[device], 0, 1});
    return CUDA_SUCCESS;
}

/* The memory that an upload or launch of a graph needs from one pool on each device. */
struct needs {
    int count;
    struct gputile_need need[GPUTILE_MOST_GPUS];
};

static CUresult enter(const struct sums *sums, struct needs *needs) {
    needs->count = 0;
    for (CUdevice device = 0; device < GPUTILE_MOST_GPUS; device++) {
        if (!sums->of[device]) continue;
        struct gputile_need need = {gputile_graph_pool(device), sums->of[device]};
        if (!need.pool) return needs->count = 0, CUDA_ERROR_NO_DEVICE;
        needs->need[needs->count++] = need;
    }
    if (!needs->count) return CUDA_SUCCESS;
    CUresult result = gputile_pools_enter(needs->need, needs->count);
    if (result != CUDA_SUCCESS) needs->count = 0;
    return result;
}

static void leave(const struct needs *needs) {
    if (needs->count) gputile_pools_leave(needs->need, needs->count);
}

GPUTILE_EXPORT CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *error, char *log,
                                           size_t size) {
    return remember(CALL_REAL(cuGraphInstantiate, cuGraphInstantiate, exec, graph, error, log, size), exec, graph);
}

GPUTILE_EXPORT CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error, char *log,
                                              size_t size) {
    return remember(CALL_REAL(cuGraphInstantiate, cuGraphInstantiate_v2, exec, graph, error, log, size), exec, graph);
}

GPUTILE_EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
    return remember(CALL_REAL(cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags, exec, graph, flags), exec,
                    graph);
}

/* Instantiation may upload the graph, which allocates the graph's memory. */
static CUresult begin_upload(CUgraph graph, const CUDA_GRAPH_INSTANTIATE_PARAMS *params, struct needs *needs) {
    struct sums sums = {{0}};
    if (!gputile_init()) return CUDA_ERROR_NO_DEVICE;
    if (params && params->hUploadStream) sums = asked_by(graph);
    return enter(&sums, needs);
}

GPUTILE_EXPORT CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph,
                                                     CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
    struct needs needs;
    CUresult result = begin_upload(graph, params, &needs);
    if (result != CUDA_SUCCESS) return result;
    result = remember(CALL_REAL(cuGraphInstantiateWithParams, cuGraphInstantiateWithParams, exec, graph, params), exec,
                      graph);
    leave(&needs);
    return result;
}

GPUTILE_EXPORT CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph,
                                                          CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
    struct needs needs;
    CUresult result = begin_upload(graph, params, &needs);
    if (result != CUDA_SUCCESS) return result;
    result = remember(CALL_REAL(cuGraphInstantiateWithParams, cuGraphInstantiateWithParams_ptsz, exec, graph, params),
                      exec, graph);
    leave(&needs);
    return result;
}

GPUTILE_EXPORT CUresult cuGraphExecDestroy(CUgraphExec exec) {
    struct gputile_allocation taken;
    for (CUdevice device = 0; device < gputile_device_count(); device++)
        gputile_allocation_take(GPUTILE_EXEC, key_of(exec, device), &taken);
    return CALL_REAL(cuGraphExecDestroy, cuGraphExecDestroy, exec);
}

/* A graph that is about to run on a GPU, and the memory that it needs from pools. */
struct run {
    int gpu;
    struct needs needs;
};

/* Wait for the turn, and then enter the graphs' pools. The order matters, because the wait may be long. */
static CUresult begin_run(CUgraphExec exec, struct run *run) {
    struct gputile_allocation asked;
    struct sums sums = {{0}};
    run->needs.count = 0;
    CUresult result = gputile_current_gpu(&run->gpu);
    if (result != CUDA_SUCCESS) return result;
    timeslice_before(run->gpu);
    for (CUdevice device = 0; device < gputile_device_count(); device++)
        if (gputile_allocation_find(GPUTILE_EXEC, key_of(exec, device), &asked)) sums.of[device] = asked.bytes;
    result = enter(&sums, &run->needs);
    if (result != CUDA_SUCCESS) timeslice_after(run->gpu);
    return result;
}

/* A launch that exceeded the limit by the pool's grain is already submitted. The next launch is refused. */
static CUresult end_run(const struct run *run, CUresult result) {
    leave(&run->needs);
    timeslice_after(run->gpu);
    return result;
}

GPUTILE_EXPORT CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
    struct run run;
    CUresult result = begin_run(exec, &run);
    if (result != CUDA_SUCCESS) return result;
    return end_run(&run, CALL_REAL(cuGraphLaunch, cuGraphLaunch, exec, stream));
}

GPUTILE_EXPORT CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream) {
    struct run run;
    CUresult result = begin_run(exec, &run);
    if (result != CUDA_SUCCESS) return result;
    return end_run(&run, CALL_REAL(cuGraphLaunch, cuGraphLaunch_ptsz, exec, stream));
}

GPUTILE_EXPORT CUresult cuGraphUpload(CUgraphExec exec, CUstream stream) {
    struct run run;
    CUresult result = begin_run(exec, &run);
    if (result != CUDA_SUCCESS) return result;
    return end_run(&run, CALL_REAL(cuGraphUpload, cuGraphUpload, exec, stream));
}

GPUTILE_EXPORT CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream) {
    struct run run;
    CUresult result = begin_run(exec, &run);
    if (result != CUDA_SUCCESS) return result;
    return end_run(&run, CALL_REAL(cuGraphUpload, cuGraphUpload_ptsz, exec, stream));
}
