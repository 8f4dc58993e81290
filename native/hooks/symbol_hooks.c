/* Hooks dlsym and cuGetProcAddress, by which programs find the driver's functions. They return this library's hook of a
 * function if there is one. Otherwise they return the driver's function if it is public, and nothing if it is
 * unknown. */
#define _GNU_SOURCE
#include <string.h>

#include "base/driver.h"
#include "base/libc_symbols.h"
#include "base/log.h"
#include "hooks/hook_table.h"
#include "hooks/nvml.h"

/* Log each name once. There are only a few names. */
static void log_refused(const char *name) {
    enum { MOST = 64 };
    static const char *said[MOST];
    for (int i = 0; i < MOST; i++) {
        const char *known = __atomic_load_n(&said[i], __ATOMIC_ACQUIRE), *none = NULL;
        if (known && !strcmp(known, name)) return;
        if (known) continue;
        const char *copy = strdup(name);
        if (!copy || !__atomic_compare_exchange_n(&said[i], &none, copy, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
            return;
        gputile_log(
            "%s is refused: the driver is newer than gputile, which does not know whether this function allocates GPU "
            "memory. A newer gputile may support it.",
            name);
        return;
    }
}

/* The result of dlsym if this library replaces it. After NULL, the real dlsym looks up `*name`, which may be
 * changed. */
static void *answer(const char **name) {
    static const char refused[] = "refused_by_gputile";
    if (!*name) return NULL;
    if (!strncmp(*name, "nvml", 4)) return gputile_nvml_hook(*name);
    if (!gputile_is_driver_name(*name)) return NULL;
    void *hook = gputile_hook_of_symbol(*name);
    if (hook) gputile_pin_driver();
    if (!hook && !gputile_knows(*name) && gputile_driver_symbol(*name)) {
        log_refused(*name);
        *name = refused; /* a name that dlsym does not find, so that dlerror has a message */
    }
    return hook;
}

/* For RTLD_NEXT, dlsym must see the return address of the program. So no frame of this library may be on the stack, as
 * the assembly below ensures. */
struct choice {
    void *answer, *next;
};
__attribute__((visibility("hidden"), used)) struct choice gputile_choose(const char **name, int versioned) {
    static void *next[2];
    struct choice choice = {answer(name), __atomic_load_n(&next[versioned], __ATOMIC_RELAXED)};
    if (!choice.next) {
        choice.next = gputile_libc_symbol(versioned ? "dlvsym" : "dlsym");
        __atomic_store_n(&next[versioned], choice.next, __ATOMIC_RELAXED);
    }
    return choice;
}

/* RTLD_NEXT means the object after the caller's object, which dlsym finds by its return address. So this function jumps
 * to the real dlsym, with the stack and the arguments of the caller. */
#define TRAMPOLINE_X86_64(function, versioned)                                              \
    __asm__(".text\n.globl " #function "\n.type " #function ", @function\n" #function ":\n" \
            ".byte 0xf3, 0x0f, 0x1e, 0xfa\n" /* endbr64 */                                  \
            "  push %rdx\n  push %rsi\n  push %rdi\n"                                       \
            "  lea 8(%rsp), %rdi\n  mov $" #versioned ", %esi\n"                            \
            "  call gputile_choose\n"                                                       \
            "  mov %rdx, %r11\n"                                                            \
            "  pop %rdi\n  pop %rsi\n  pop %rdx\n"                                          \
            "  test %rax, %rax\n  jz 1f\n  ret\n"                                           \
            "1: jmp *%r11\n.size " #function ", .-" #function "\n");
#define TRAMPOLINE_AARCH64(function, versioned)                                                \
    __asm__(".text\n.globl " #function "\n.type " #function ", %function\n" #function ":\n"    \
            "  stp x29, x30, [sp, -48]!\n  mov x29, sp\n"                                      \
            "  stp x0, x1, [sp, 16]\n  str x2, [sp, 32]\n"                                     \
            "  add x0, sp, 24\n  mov w1, " #versioned "\n"                                     \
            "  bl gputile_choose\n"                                                            \
            "  mov x16, x1\n  cbnz x0, 1f\n"                                                   \
            "  ldp x0, x1, [sp, 16]\n  ldr x2, [sp, 32]\n  ldp x29, x30, [sp], 48\n  br x16\n" \
            "1: ldp x29, x30, [sp], 48\n  ret\n.size " #function ", .-" #function "\n");

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
/* Not instrumented, because sanitizers call dlsym before instrumented code can run. */
#elif defined(__x86_64__)
TRAMPOLINE_X86_64(dlsym, 0)
TRAMPOLINE_X86_64(dlvsym, 1)
#elif defined(__aarch64__)
TRAMPOLINE_AARCH64(dlsym, 0)
TRAMPOLINE_AARCH64(dlvsym, 1)
#else
#error "gputile's library is for x86-64 and 64-bit Arm"
#endif

enum { NO_SUCH_SYMBOL = 1, VERSION_NOT_SUFFICIENT = 2 }; /* CUdriverProcAddressQueryResult */

static CUresult refuse(const char *name, void **function, int *status, int why) {
    log_refused(name);
    *function = NULL;
    if (status) *status = why;
    return CUDA_ERROR_NOT_FOUND;
}

static CUresult take_over(const char *name, void **function, int version, cuuint64_t flags, int *status) {
    void *hook =
        gputile_hook_of_answer(name, *function, version, flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
    if (hook) *function = hook;
    if (hook || gputile_knows(name)) return CUDA_SUCCESS;
    return refuse(name, function, status, NO_SUCH_SYMBOL);
}

static int at_most_known(int version) { return version < GPUTILE_KNOWN_CUDA ? version : GPUTILE_KNOWN_CUDA; }

CUresult cuGetProcAddress(const char *name, void **function, int version, cuuint64_t flags);
CUresult cuGetProcAddress_v2(const char *name, void **function, int version, cuuint64_t flags, int *status);
CUresult cuGetProcAddress_v2_ptsz(const char *name, void **function, int version, cuuint64_t flags, int *status);

/* Calls one of the forms of the driver's cuGetProcAddress. */
typedef CUresult (*ask_driver)(const char *name, void **function, int version, cuuint64_t flags, int *status);

static CUresult ask_1(const char *name, void **function, int version, cuuint64_t flags, int *status) {
    (void)status;
    return CALL_REAL(cuGetProcAddress, cuGetProcAddress, name, function, version, flags);
}

static CUresult ask_2(const char *name, void **function, int version, cuuint64_t flags, int *status) {
    return CALL_REAL(cuGetProcAddress, cuGetProcAddress_v2, name, function, version, flags, status);
}

static CUresult ask_2_ptsz(const char *name, void **function, int version, cuuint64_t flags, int *status) {
    return CALL_REAL(cuGetProcAddress, cuGetProcAddress_v2_ptsz, name, function, version, flags, status);
}

/* A form of a function that is newer than this library has other parameters. A program does not get this form, because
 * its allocations are unknown. It does not get an older form either, which it would call with the new parameters. */
static CUresult look_up(ask_driver ask, const char *name, void **function, int version, cuuint64_t flags, int *status) {
    void *newest;
    int ignored, known = at_most_known(version);
    gputile_pin_driver();
    CUresult result = ask(name, function, version, flags, status);
    if (result != CUDA_SUCCESS || !*function) return result;
    if (known != version) {
        newest = *function;
        if (ask(name, function, known, flags, &ignored) != CUDA_SUCCESS || *function != newest)
            return refuse(name, function, status, VERSION_NOT_SUFFICIENT);
    }
    return take_over(name, function, known, flags, status);
}

GPUTILE_EXPORT CUresult cuGetProcAddress(const char *name, void **function, int version, cuuint64_t flags) {
    return look_up(ask_1, name, function, version, flags, NULL);
}

GPUTILE_EXPORT CUresult cuGetProcAddress_v2(const char *name, void **function, int version, cuuint64_t flags,
                                            int *status) {
    return look_up(ask_2, name, function, version, flags, status);
}

GPUTILE_EXPORT CUresult cuGetProcAddress_v2_ptsz(const char *name, void **function, int version, cuuint64_t flags,
                                                 int *status) {
    return look_up(ask_2_ptsz, name, function, version, flags | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, status);
}

/* A CUDA runtime that is newer than this library then reports that the driver is too old. */
GPUTILE_EXPORT CUresult cuDriverGetVersion(int *version) {
    if (!version) return CUDA_ERROR_INVALID_VALUE;
    gputile_pin_driver();
    CUresult result = CALL_REAL(cuDriverGetVersion, cuDriverGetVersion, version);
    if (result == CUDA_SUCCESS) *version = at_most_known(*version);
    return result;
}
