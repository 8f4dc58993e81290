/* Captures of graphs, counted: while one goes on nobody may wait for its context (drainer.c). */
#include "hooks/hook_table.h"
#include "timeslice/timeslice.h"

enum {
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901, /* these two errors end a capture, the others leave it as it is */
    CUDA_ERROR_STREAM_CAPTURE_UNJOINED = 904
};

static CUresult begun(CUresult result) {
    if (result != CUDA_SUCCESS) timeslice_count_capture(-1);
    return result;
}

static CUresult ended(CUresult result) {
    if (result == CUDA_SUCCESS || result == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED || result == CUDA_ERROR_STREAM_CAPTURE_UNJOINED)
        timeslice_count_capture(-1);
    return result;
}

#define BEGIN_1(symbol)                                                 \
    GPUTILE_EXPORT CUresult symbol(CUstream stream) {                   \
        timeslice_count_capture(1);                                        \
        return begun(CALL_REAL(cuStreamBeginCapture, symbol, stream));  \
    }
#define BEGIN_2(symbol)                                                      \
    GPUTILE_EXPORT CUresult symbol(CUstream stream, int mode) {              \
        timeslice_count_capture(1);                                             \
        return begun(CALL_REAL(cuStreamBeginCapture, symbol, stream, mode)); \
    }
#define BEGIN_TO_GRAPH(symbol)                                                                                             \
    GPUTILE_EXPORT CUresult symbol(CUstream stream, CUgraph graph, const CUgraphNode *after, const void *edges, size_t count, \
                                   int mode) {                                                                             \
        timeslice_count_capture(1);                                                                                           \
        return begun(CALL_REAL(cuStreamBeginCaptureToGraph, symbol, stream, graph, after, edges, count, mode));            \
    }
#define END(symbol)                                                            \
    GPUTILE_EXPORT CUresult symbol(CUstream stream, CUgraph *graph) {          \
        return ended(CALL_REAL(cuStreamEndCapture, symbol, stream, graph));    \
    }

BEGIN_1(cuStreamBeginCapture)
BEGIN_1(cuStreamBeginCapture_ptsz)
BEGIN_2(cuStreamBeginCapture_v2)
BEGIN_2(cuStreamBeginCapture_v2_ptsz)
BEGIN_TO_GRAPH(cuStreamBeginCaptureToGraph)
BEGIN_TO_GRAPH(cuStreamBeginCaptureToGraph_ptsz)
END(cuStreamEndCapture)
END(cuStreamEndCapture_ptsz)
