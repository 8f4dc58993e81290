/* What stands for the documents' sample of a program on a shared GPU, under whatever name and arguments it is started:
 * it asks the CUDA driver how much memory there is, takes half of it, tries to take more than all of it, says what it
 * got, and keeps what it has until it is asked to end. */
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>

enum { MIB = 1 << 20 };

typedef int (*init_function)(unsigned);
typedef int (*count_function)(int *);
typedef int (*device_function)(int *, int);
typedef int (*context_function)(void **, unsigned, int);
typedef int (*info_function)(size_t *, size_t *);
typedef int (*allocate_function)(unsigned long long *, size_t);

int main(void) {
    sigset_t ends;
    int number, gpus = 0, device = 0;
    void *context;
    size_t available = 0, total = 0;
    unsigned long long pointer;
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigprocmask(SIG_BLOCK, &ends, NULL);
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    int begun = ((init_function)dlsym(driver, "cuInit"))(0);
    if (!begun) begun = ((count_function)dlsym(driver, "cuDeviceGetCount"))(&gpus);
    if (!begun) begun = ((device_function)dlsym(driver, "cuDeviceGet"))(&device, 0);
    if (!begun) begun = ((context_function)dlsym(driver, "cuCtxCreate_v2"))(&context, 0, device);
    if (!begun) begun = ((info_function)dlsym(driver, "cuMemGetInfo_v2"))(&available, &total);
    allocate_function allocate = (allocate_function)dlsym(driver, "cuMemAlloc_v2");
    printf("begun=%d gpus=%d total_mib=%zu", begun, gpus, total / MIB);
    printf(" half=%d over=%d\n", allocate(&pointer, total / 2), allocate(&pointer, total + MIB));
    fflush(stdout);
    sigwait(&ends, &number);
    return 0;
}
