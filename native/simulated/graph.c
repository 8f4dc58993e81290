/* Simulates graphs with kernel, memory and child nodes. A launch takes the time of its kernels, and allocates from the
 * GPU's graph pool. */
#include "simulated/simulated.h"
#include <stdlib.h>
#include <string.h>

struct node {
    int type;
    uint64_t ns;
    CUDA_MEM_ALLOC_NODE_PARAMS alloc;
    struct graph *child;
};
struct graph {
    size_t count;
    struct node *node[256];
};
struct exec {
    struct graph *graph;
};

static struct {
    size_t reserved, used;
} pools[SIMULATED_MOST_GPUS];
static uint64_t next_address = 0x600000000000;

void graphs_in_child(void) { memset(pools, 0, sizeof pools); }

static struct node *add(struct graph *graph, int type) {
    struct node *node = graph->count < 256 ? calloc(1, sizeof *node) : NULL;
    if (node) node->type = type, graph->node[graph->count++] = node;
    return node;
}
static CUdeviceptr address(size_t bytes) {
    return __atomic_fetch_add(&next_address, (bytes / (2 * SIMULATED_MIB) + 1) * 2 * SIMULATED_MIB, __ATOMIC_RELAXED);
}

static CUresult add_alloc(CUgraphNode *made, struct graph *graph, CUDA_MEM_ALLOC_NODE_PARAMS *params) {
    struct node *node = add(graph, CU_GRAPH_NODE_TYPE_MEM_ALLOC);
    if (!node || !gpu_of(params->poolProps.location.id)) return CUDA_ERROR_INVALID_VALUE;
    params->dptr = address(params->bytesize), node->alloc = *params;
    if (made) *made = (CUgraphNode)node;
    return CUDA_SUCCESS;
}
CUdeviceptr capture_alloc(struct stream *stream, int device, size_t bytes) {
    CUDA_MEM_ALLOC_NODE_PARAMS params = {.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, device},
                                         .bytesize = bytes};
    add_alloc(NULL, stream->graph, &params);
    return params.dptr;
}
void capture_work(struct stream *stream, uint64_t ns) {
    struct node *node = add(stream->graph, CU_GRAPH_NODE_TYPE_KERNEL);
    if (node) node->ns = ns;
}

EXPORT CUresult cuGraphCreate(CUgraph *graph, unsigned flags) {
    struct graph *made = calloc(1, sizeof *made);
    *graph = (CUgraph)made;
    return (void)flags, made ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
EXPORT CUresult cuGraphDestroy(CUgraph graph) { return (void)graph, CUDA_SUCCESS; }
EXPORT CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t n,
                                       CUDA_MEM_ALLOC_NODE_PARAMS *params) {
    return (void)deps, (void)n, add_alloc(node, (struct graph *)graph, params);
}
EXPORT CUresult cuGraphAddMemFreeNode(CUgraphNode *made, CUgraph graph, const CUgraphNode *deps, size_t n,
                                      CUdeviceptr p) {
    struct node *node = add((struct graph *)graph, CU_GRAPH_NODE_TYPE_MEM_FREE);
    node->alloc.dptr = p, *made = (CUgraphNode)node;
    return (void)deps, (void)n, CUDA_SUCCESS;
}
/* A kernel node of the simulated driver has its time directly in `params`. */
EXPORT CUresult cuGraphAddKernelNode_v2(CUgraphNode *made, CUgraph graph, const CUgraphNode *deps, size_t n,
                                        const void *params) {
    struct node *node = add((struct graph *)graph, CU_GRAPH_NODE_TYPE_KERNEL);
    node->ns = *(const uint64_t *)params, *made = (CUgraphNode)node;
    return (void)deps, (void)n, CUDA_SUCCESS;
}
EXPORT CUresult cuGraphAddChildGraphNode(CUgraphNode *made, CUgraph graph, const CUgraphNode *deps, size_t n,
                                         CUgraph child) {
    struct node *node = add((struct graph *)graph, CU_GRAPH_NODE_TYPE_GRAPH);
    node->child = (struct graph *)child, *made = (CUgraphNode)node;
    return (void)deps, (void)n, CUDA_SUCCESS;
}
EXPORT CUresult cuGraphAddNode(CUgraphNode *made, CUgraph graph, const CUgraphNode *deps, size_t n,
                               CUgraphNodeParams *params) {
    return params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ? cuGraphAddMemAllocNode(made, graph, deps, n, &params->alloc)
                                                        : CUDA_ERROR_NOT_SUPPORTED;
}
EXPORT CUresult cuGraphAddNode_v2(CUgraphNode *made, CUgraph graph, const CUgraphNode *deps, const void *edges,
                                  size_t n, CUgraphNodeParams *params) {
    return (void)edges, cuGraphAddNode(made, graph, deps, n, params);
}
EXPORT CUresult cuGraphGetNodes(CUgraph handle, CUgraphNode *nodes, size_t *count) {
    struct graph *graph = (struct graph *)handle;
    for (size_t i = 0; nodes && i < *count && i < graph->count; i++) nodes[i] = (CUgraphNode)graph->node[i];
    *count = graph->count;
    return CUDA_SUCCESS;
}
EXPORT CUresult cuGraphNodeGetType(CUgraphNode node, int *type) {
    return *type = ((struct node *)node)->type, CUDA_SUCCESS;
}
EXPORT CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *params) {
    return *params = ((struct node *)node)->alloc, CUDA_SUCCESS;
}
EXPORT CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *graph) {
    return *graph = (CUgraph)((struct node *)node)->child, CUDA_SUCCESS;
}

static CUresult instantiate(CUgraphExec *made, CUgraph graph) {
    struct exec *exec = malloc(sizeof *exec);
    exec->graph = (struct graph *)graph, *made = (CUgraphExec)exec;
    return CUDA_SUCCESS;
}
EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
    return (void)flags, instantiate(exec, graph);
}
EXPORT CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *p) {
    return (void)p, instantiate(exec, graph);
}
EXPORT CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error, char *log, size_t n) {
    return (void)error, (void)log, (void)n, instantiate(exec, graph);
}
EXPORT CUresult cuGraphExecDestroy(CUgraphExec exec) { return free(exec), CUDA_SUCCESS; }

struct sums {
    size_t allocated[SIMULATED_MOST_GPUS], freed[SIMULATED_MOST_GPUS];
    uint64_t ns;
};
static void sum(struct graph *graph, struct sums *sums) {
    for (size_t i = 0; i < graph->count; i++) {
        struct node *node = graph->node[i];
        if (node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
            sums->allocated[node->alloc.poolProps.location.id] += node->alloc.bytesize;
        else if (node->type == CU_GRAPH_NODE_TYPE_GRAPH) sum(node->child, sums);
        else if (node->type == CU_GRAPH_NODE_TYPE_KERNEL) sums->ns += node->ns;
        else
            for (size_t j = 0; j < graph->count; j++) {
                CUDA_MEM_ALLOC_NODE_PARAMS *alloc = &graph->node[j]->alloc;
                if (graph->node[j]->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && alloc->dptr == node->alloc.dptr)
                    sums->freed[alloc->poolProps.location.id] += alloc->bytesize;
            }
    }
}
/* A launch that is refused on one GPU may have grown the pool of another GPU. */
EXPORT CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
    struct sums sums = {0};
    CUresult result = CUDA_SUCCESS;
    if (current_device() < 0) return CUDA_ERROR_INVALID_CONTEXT;
    sum(((struct exec *)exec)->graph, &sums);
    pthread_mutex_lock(&simulated_mutex);
    for (int i = 0; i < SIMULATED_MOST_GPUS && !result; i++) {
        size_t need = pools[i].used + sums.allocated[i];
        if (need > pools[i].reserved && !(result = take(i, need - pools[i].reserved))) pools[i].reserved = need;
    }
    for (int i = 0; i < SIMULATED_MOST_GPUS && !result; i++) pools[i].used += sums.allocated[i] - sums.freed[i];
    pthread_mutex_unlock(&simulated_mutex);
    if (!result) submit(stream, sums.ns, true);
    return result;
}
EXPORT CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream) {
    return cuGraphLaunch(exec, stream ? stream : CU_STREAM_PER_THREAD);
}
EXPORT CUresult cuGraphUpload(CUgraphExec exec, CUstream stream) { return (void)exec, (void)stream, CUDA_SUCCESS; }
EXPORT CUresult cuDeviceGraphMemTrim(CUdevice device) {
    pthread_mutex_lock(&simulated_mutex);
    give(device, pools[device].reserved - pools[device].used);
    pools[device].reserved = pools[device].used;
    pthread_mutex_unlock(&simulated_mutex);
    return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGetGraphMemAttribute(CUdevice device, int attribute, void *value) {
    *(uint64_t *)value =
        attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT ? pools[device].reserved : pools[device].used;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamBeginCapture_v2(CUstream handle, int mode) {
    struct stream *stream = stream_of(handle);
    if (!stream) return CUDA_ERROR_NOT_SUPPORTED;
    stream->capturing = 1, stream->graph = calloc(1, sizeof(struct graph));
    return (void)mode, CUDA_SUCCESS;
}
EXPORT CUresult cuStreamEndCapture(CUstream handle, CUgraph *graph) {
    struct stream *stream = stream_of(handle);
    stream->capturing = 0, *graph = (CUgraph)stream->graph;
    return CUDA_SUCCESS;
}
EXPORT CUresult cuStreamIsCapturing(CUstream handle, int *status) {
    *status = stream_of(handle) ? stream_of(handle)->capturing : 0;
    return CUDA_SUCCESS;
}
EXPORT CUresult cuStreamIsCapturing_ptsz(CUstream stream, int *status) {
    return cuStreamIsCapturing(stream ? stream : CU_STREAM_PER_THREAD, status);
}
