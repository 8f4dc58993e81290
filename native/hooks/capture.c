/* Counts graph captures, because no thread may wait for the context during a capture (timeslice/captures.h). */
#include "hooks/hook_table.h"
#include "timeslice/captures.h"

enum {
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901, /* only these two errors end a capture */
    CUDA_ERROR_STREAM_CAPTURE_UNJOINED = 904
};

/* The capture is counted before the driver is called, and no longer counted if the driver refuses. */
static CUresult begun(CUresult result) {
    if (result != CUDA_SUCCESS) timeslice_count_capture(-1);
    return result;
}

static CUresult ended(CUresult result) {
    if (result == CUDA_SUCCESS || result == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED ||
        result == CUDA_ERROR_STREAM_CAPTURE_UNJOINED)
        timeslice_count_capture(-1);
    return result;
}

GPUTILE_EXPORT CUresult cuStreamBeginCapture(CUstream stream) {
    timeslice_count_capture(1);
    return begun(CALL_REAL(cuStreamBeginCapture, cuStreamBeginCapture, stream));
}

GPUTILE_EXPORT CUresult cuStreamBeginCapture_ptsz(CUstream stream) {
    timeslice_count_capture(1);
    return begun(CALL_REAL(cuStreamBeginCapture, cuStreamBeginCapture_ptsz, stream));
}

GPUTILE_EXPORT CUresult cuStreamBeginCapture_v2(CUstream stream, int mode) {
    timeslice_count_capture(1);
    return begun(CALL_REAL(cuStreamBeginCapture, cuStreamBeginCapture_v2, stream, mode));
}

GPUTILE_EXPORT CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, int mode) {
    timeslice_count_capture(1);
    return begun(CALL_REAL(cuStreamBeginCapture, cuStreamBeginCapture_v2_ptsz, stream, mode));
}

GPUTILE_EXPORT CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *after,
                                                    const void *edges, size_t count, int mode) {
    timeslice_count_capture(1);
    return begun(
        CALL_REAL(cuStreamBeginCaptureToGraph, cuStreamBeginCaptureToGraph, stream, graph, after, edges, count, mode));
}

GPUTILE_EXPORT CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode *after,
                                                         const void *edges, size_t count, int mode) {
    timeslice_count_capture(1);
    return begun(CALL_REAL(cuStreamBeginCaptureToGraph, cuStreamBeginCaptureToGraph_ptsz, stream, graph, after, edges,
                           count, mode));
}

GPUTILE_EXPORT CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
    return ended(CALL_REAL(cuStreamEndCapture, cuStreamEndCapture, stream, graph));
}

GPUTILE_EXPORT CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph) {
    return ended(CALL_REAL(cuStreamEndCapture, cuStreamEndCapture_ptsz, stream, graph));
}
