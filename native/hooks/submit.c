/* Delays work for a GPU (kernels, copies, fills) until the container's turn, passes the work to the driver, and
 * accounts for its time.
 *
 * The parameters of all these functions are integers and pointers of at most 64 bits. So one form of a hook serves all
 * functions with the same number of parameters. It passes on the registers and the stack unchanged.
 */
#include "base/driver.h"
#include "hooks/current_gpu.h"
#include "hooks/hook_table.h"
#include "timeslice/timeslice.h"

typedef uintptr_t word;
enum { NO_STREAM = -1, IN_CONFIG = -2 };

static CUstream stream_of(const word *argument, int position, bool per_thread) {
    CUstream stream = NULL;
    if (position >= 0) stream = (CUstream)argument[position];
    else if (position == IN_CONFIG && argument[0]) stream = ((const CUlaunchConfig *)argument[0])->hStream;
    return !stream && per_thread ? CU_STREAM_PER_THREAD : stream;
}

/* Captured work is not submitted to the GPU. The launch of its graph will be. */
static bool is_captured(CUstream stream) {
    int status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult (*ask)(CUstream, int *) = gputile_driver()->cuStreamIsCapturing;
    return ask && ask(stream, &status) == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

struct submission {
    CUresult result; /* CUDA_SUCCESS if the call may be passed to the driver */
    int gpu; /* -1 if the call does not submit work to a GPU now */
};

static struct submission begin(const word *argument, int position, bool per_thread) {
    struct submission submission = {.gpu = -1};
    int gpu = -1;
    submission.result = gputile_current_gpu(&gpu);
    if (submission.result != CUDA_SUCCESS || is_captured(stream_of(argument, position, per_thread))) return submission;
    submission.gpu = gpu;
    timeslice_before(gpu);
    return submission;
}

static CUresult end(const struct submission *submission) {
    if (submission->gpu >= 0) timeslice_after(submission->gpu);
    return submission->result;
}

#define PARAMETERS_1  word a
#define PARAMETERS_2  PARAMETERS_1, word b
#define PARAMETERS_3  PARAMETERS_2, word c
#define PARAMETERS_4  PARAMETERS_3, word d
#define PARAMETERS_5  PARAMETERS_4, word e
#define PARAMETERS_6  PARAMETERS_5, word f
#define PARAMETERS_7  PARAMETERS_6, word g
#define PARAMETERS_8  PARAMETERS_7, word h
#define PARAMETERS_9  PARAMETERS_8, word i
#define PARAMETERS_10 PARAMETERS_9, word j
#define PARAMETERS_11 PARAMETERS_10, word k
#define ARGUMENTS_1   a
#define ARGUMENTS_2   ARGUMENTS_1, b
#define ARGUMENTS_3   ARGUMENTS_2, c
#define ARGUMENTS_4   ARGUMENTS_3, d
#define ARGUMENTS_5   ARGUMENTS_4, e
#define ARGUMENTS_6   ARGUMENTS_5, f
#define ARGUMENTS_7   ARGUMENTS_6, g
#define ARGUMENTS_8   ARGUMENTS_7, h
#define ARGUMENTS_9   ARGUMENTS_8, i
#define ARGUMENTS_10  ARGUMENTS_9, j
#define ARGUMENTS_11  ARGUMENTS_10, k

/* Each row of the table becomes a hook. It waits for the turn, calls the driver's function, and accounts for the work.
 * native/README.md explains why this is the only macro that defines functions.
 */
#define X(name, symbol, since, per_thread, count, position)                                                    \
    GPUTILE_EXPORT CUresult symbol(PARAMETERS_##count) {                                                       \
        const word argument[] = {ARGUMENTS_##count};                                                           \
        struct submission submission = begin(argument, position, per_thread);                                  \
        if (submission.result == CUDA_SUCCESS) submission.result = CALL_REAL(name, symbol, ARGUMENTS_##count); \
        return end(&submission);                                                                               \
    }
#include "hooks/submit.def"
