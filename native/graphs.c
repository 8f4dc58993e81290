/* Graphs: their allocation nodes take memory when the graph is launched, from a pool of the card. What a launch may
 * take is the sum over the nodes; it is found once, when the graph is instantiated. */
#include "cards.h"
#include "driver.h"
#include "entries.h"
#include "gate.h"
#include "holdings.h"
#include "pools.h"
#include "turn.h"

#include <stdlib.h>

enum { MOST_DEPTH = 16 };

/* What a graph and its children allocate, UINT64_MAX if that cannot be told. */
static uint64_t asked_by(CUgraph graph, int depth) {
    const struct gputile_driver *driver = gputile_driver();
    uint64_t sum = 0;
    size_t count = 0;
    if (depth == MOST_DEPTH || driver->cuGraphGetNodes(graph, NULL, &count) != CUDA_SUCCESS) return UINT64_MAX;
    CUgraphNode *nodes = count ? malloc(count * sizeof *nodes) : NULL;
    if (count && (!nodes || driver->cuGraphGetNodes(graph, nodes, &count) != CUDA_SUCCESS)) return free(nodes), UINT64_MAX;
    for (size_t i = 0; i < count && sum != UINT64_MAX; i++) {
        CUDA_MEM_ALLOC_NODE_PARAMS params;
        CUgraph child;
        uint64_t more = 0;
        int type;
        if (driver->cuGraphNodeGetType(nodes[i], &type) != CUDA_SUCCESS) sum = UINT64_MAX;
        else if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
            more = driver->cuGraphMemAllocNodeGetParams(nodes[i], &params) == CUDA_SUCCESS ? params.bytesize : UINT64_MAX;
        else if (type == CU_GRAPH_NODE_TYPE_GRAPH)
            more = driver->cuGraphChildGraphNodeGetGraph(nodes[i], &child) == CUDA_SUCCESS ? asked_by(child, depth + 1) : UINT64_MAX;
        if (__builtin_add_overflow(sum, more, &sum)) sum = UINT64_MAX;
    }
    free(nodes);
    return sum;
}

static CUresult remember(CUresult result, const CUgraphExec *exec, CUgraph graph) {
    if (result == CUDA_SUCCESS && gputile_driver()->cuGraphMemAllocNodeGetParams) {
        uint64_t bytes = asked_by(graph, 0);
        if (bytes) gputile_holding_add((struct gputile_holding){GPUTILE_EXEC, (uintptr_t)*exec, -1, bytes, 0, 1});
    }
    return result;
}

GPUTILE_EXPORT CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *error, char *log, size_t size) {
    return remember(CALL_REAL(cuGraphInstantiate, cuGraphInstantiate, exec, graph, error, log, size), exec, graph);
}

GPUTILE_EXPORT CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error, char *log, size_t size) {
    return remember(CALL_REAL(cuGraphInstantiate, cuGraphInstantiate_v2, exec, graph, error, log, size), exec, graph);
}

GPUTILE_EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
    return remember(CALL_REAL(cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags, exec, graph, flags), exec, graph);
}

/* Instantiating may upload the graph, and uploading takes its memory. */
#define INSTANTIATE(call)                                                                            \
    CUdevice device = 0;                                                                             \
    CUresult result = gputile_driver()->cuCtxGetDevice(&device);                                     \
    uint64_t bytes = params && params->hUploadStream ? asked_by(graph, 0) : 0;                       \
    struct gputile_pool *pool = result == CUDA_SUCCESS && bytes ? gputile_graph_pool(device) : NULL; \
    if (pool && (result = gputile_pool_enter(pool, bytes)) != CUDA_SUCCESS) return result;           \
    result = remember(call, exec, graph);                                                            \
    if (pool) gputile_pool_leave(pool);                                                              \
    return result;

GPUTILE_EXPORT CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
    INSTANTIATE(CALL_REAL(cuGraphInstantiateWithParams, cuGraphInstantiateWithParams, exec, graph, params))
}

GPUTILE_EXPORT CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
    INSTANTIATE(CALL_REAL(cuGraphInstantiateWithParams, cuGraphInstantiateWithParams_ptsz, exec, graph, params))
}

GPUTILE_EXPORT CUresult cuGraphExecDestroy(CUgraphExec exec) {
    struct gputile_holding taken;
    gputile_holding_take(GPUTILE_EXEC, (uintptr_t)exec, &taken);
    return CALL_REAL(cuGraphExecDestroy, cuGraphExecDestroy, exec);
}

/* Wait for the turn, then for room in the graphs' pool; in this order, since a turn may take long to come. */
static CUresult begin(CUgraphExec exec, CUstream stream, int *card, struct gputile_pool **pool) {
    struct gputile_holding asked;
    CUdevice device;
    *pool = NULL;
    CUresult result = gputile_current_card(card);
    if (result != CUDA_SUCCESS) return result;
    gputile_turn_before(*card, stream);
    if (!gputile_holding_find(GPUTILE_EXEC, (uintptr_t)exec, &asked)) return CUDA_SUCCESS;
    result = gputile_driver()->cuCtxGetDevice(&device);
    if (result == CUDA_SUCCESS && (*pool = gputile_graph_pool(device))) result = gputile_pool_enter(*pool, asked.bytes);
    if (result != CUDA_SUCCESS) gputile_turn_after(*card, stream);
    return result;
}

/* A launch that outgrew its limit by the pool's grain has been submitted: the next one finds no room. */
#define RUN(stream, call)                                      \
    struct gputile_pool *pool;                                 \
    int card;                                                  \
    CUresult result = begin(exec, stream, &card, &pool);       \
    if (result != CUDA_SUCCESS) return result;                 \
    result = call;                                             \
    if (pool) gputile_pool_leave(pool);                        \
    gputile_turn_after(card, stream);                          \
    return result;

GPUTILE_EXPORT CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
    RUN(stream, CALL_REAL(cuGraphLaunch, cuGraphLaunch, exec, stream))
}

GPUTILE_EXPORT CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream) {
    RUN(stream ? stream : CU_STREAM_PER_THREAD, CALL_REAL(cuGraphLaunch, cuGraphLaunch_ptsz, exec, stream))
}

GPUTILE_EXPORT CUresult cuGraphUpload(CUgraphExec exec, CUstream stream) {
    RUN(stream, CALL_REAL(cuGraphUpload, cuGraphUpload, exec, stream))
}

GPUTILE_EXPORT CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream) {
    RUN(stream ? stream : CU_STREAM_PER_THREAD, CALL_REAL(cuGraphUpload, cuGraphUpload_ptsz, exec, stream))
}
