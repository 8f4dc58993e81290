/* Keeps a gpu busy from one thread, after cuInit without the right to start others.
 *
 * Usage: threadless <how> <seconds>. "free": nothing is forbidden. "seccomp": clone of threads is. "processes" <n>: a
 * user of its own may have so many processes and threads. Kernels of 1 ms, one after another. Prints how many it had.
 */
#define _GNU_SOURCE
#include "base/cuda_types.h"
#include <errno.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

CUresult cuInit(unsigned);
CUresult cuDevicePrimaryCtxRetain(CUcontext *, CUdevice);
CUresult cuCtxSetCurrent(CUcontext);
CUresult cuMemAlloc_v2(CUdeviceptr *, size_t);
CUresult cuStreamSynchronize(CUstream);
CUresult cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **,
                        void **);

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int forbid_threads(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 435, 0, 1), /* clone3 */
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args)),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, CLONE_THREAD, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

/* Root may have as many as it likes: become somebody else, who can still read the allocation's files. */
static int have_few_processes(rlim_t most) {
    struct rlimit limit = {most, most};
    uid_t user = 100000 + (uid_t)getpid();
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2] = {{.effective = 1 << CAP_DAC_OVERRIDE, .permitted = 1 << CAP_DAC_OVERRIDE}};
    if (setrlimit(RLIMIT_NPROC, &limit)) return 1;
    if (getuid()) return 0;
    return prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) || setresuid(user, user, user) || syscall(SYS_capset, &header, data);
}

int main(int count, char **word) {
    CUcontext context;
    CUdeviceptr some;
    uint64_t ns = 1000000, *kernel[] = {&ns};
    int launched = 0;
    if (count < 3 || cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context) ||
        cuMemAlloc_v2(&some, 1))
        return 2;
    if (!strcmp(word[1], "seccomp") && forbid_threads()) return 3;
    if (!strcmp(word[1], "processes") && have_few_processes((rlim_t)atoi(word[3]))) return 3;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (double end = now() + atof(word[2]); now() < end; launched++)
        if (cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, (void **)kernel, NULL) || cuStreamSynchronize(NULL))
            return 4;
    printf("%d\n", launched);
    return 0;
}
