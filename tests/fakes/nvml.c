/* A libnvidia-ml.so.1 without a driver: it presents the machine that a text file describes.
 *
 * The environment variable GPUTILE_FAKE_NVML names the file; it may change at any time and is read again when its
 * inode, size or modification time differ. One fact a line, its words separated by tabs (nvml.py writes it):
 *
 *   driver <version> | cuda <integer> | init <code>          init: what every call answers, 0 for success
 *   gpu <i> uuid|name|bus <text>
 *   gpu <i> memory|numa|architecture|error <integer>         memory in bytes; error: what every call on it answers
 *   gpu <i> used|busy|celsius|milliwatts <integer>           what it measures: bytes, percent; -1: it does not know
 *   gpu <i> ecc <corrected> <uncorrected>
 *   gpu <i> capability|pcie|mig|rows <integer> <integer>     pcie: generation, width; mig: current, pending
 *                                                            rows: remapping pending, failed
 *   gpu <i> recovery <action>
 *   gpu <i> link <l> <version> <device type> <bus>           an active NVLink to a GPU (0) or a switch (2)
 *   gpu <i> instance <gi> <ci> <memory> <gpu slices> <compute slices> <uuid> <name>
 *   ancestor <i> <j> <level>
 *   fail <function> <gpu, -1 for all> <code>
 *   xid <sequence> <gpu> <code> <gi> <ci>                   gi, ci: -1 for an event of the whole GPU
 *
 * Structures and values are those of the public nvml.h; only what gputile calls is here.
 */
#include <libgen.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };
enum { DRIVER_NOT_LOADED = 9, TIMEOUT = 10, GPU_IS_LOST = 15 };
enum {
    MOST_GPUS = 64,
    MOST_LINKS = 36,
    MOST_INSTANCES = 8,
    MOST_FAILURES = 32,
    MOST_XIDS = 512,
    MOST_HANDLES = 512,
    WORDS = 12
};

typedef unsigned int uint;
typedef unsigned long long ulong64;

typedef struct {
    uint version, type;
    char bus[32];
    int active;
} Link;
typedef struct {
    uint gi, ci, gpu_slices, compute_slices;
    ulong64 memory;
    char uuid[96], name[96];
} Instance;
typedef struct {
    char uuid[96], name[96], bus[32];
    ulong64 memory;
    long long used, busy, celsius, milliwatts, ecc[2];
    int numa, architecture, error, capability[2], pcie[2], mig[2], rows[2], recovery, instances;
    Link links[MOST_LINKS];
    Instance instance[MOST_INSTANCES];
} Gpu;
typedef struct {
    char function[64];
    int gpu, code;
} Failure;
typedef struct {
    ulong64 sequence, code;
    int gpu, gi, ci;
} Xid;
typedef struct {
    char driver[80];
    int cuda, init, gpus, failures, xids;
    int ancestor[MOST_GPUS][MOST_GPUS];
    Gpu gpu[MOST_GPUS];
    Failure failure[MOST_FAILURES];
    Xid xid[MOST_XIDS];
} State;

typedef struct {
    char bus_legacy[16];
    uint domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} PciInfo;
typedef struct {
    ulong64 total, free, used;
} Memory;
typedef struct {
    uint sm, copy, decoder, encoder, jpeg, ofa, gpu_slices, compute_slices;
    ulong64 memory_mb;
} Attributes;
typedef struct {
    void *device;
    ulong64 type, data;
    uint gi, ci;
} Event;
typedef struct {
    uint field, scope;
    long long timestamp, latency;
    int type, code;
    union {
        double d;
        uint u;
        ulong64 ull;
    } value;
} FieldValue;
typedef struct {
    ulong64 delivered, types[MOST_HANDLES];
} EventSet;

static State state;
static struct stat read_as;
static int initialised;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
/* A handle is an address in one of these. As with the driver's own, a GPU's is its own for as long as the process
 * lives, whatever becomes of the others: the n-th handle is that of the UUID handle_of[n]. */
static char gpu_handle[MOST_HANDLES];
static char instance_handle[MOST_HANDLES][MOST_INSTANCES];
static char handle_of[MOST_HANDLES][96];

static void copy(char *to, size_t size, const char *from) { snprintf(to, size, "%s", from); }

static void take_gpu(char **w, int n) {
    int i = atoi(w[1]);
    if (i < 0 || i >= MOST_GPUS || n < 4) return;
    Gpu *c = &state.gpu[i];
    const char *key = w[2];
    if (i >= state.gpus) state.gpus = i + 1;
    if (!strcmp(key, "uuid")) copy(c->uuid, sizeof c->uuid, w[3]);
    else if (!strcmp(key, "name")) copy(c->name, sizeof c->name, w[3]);
    else if (!strcmp(key, "bus")) copy(c->bus, sizeof c->bus, w[3]);
    else if (!strcmp(key, "memory")) c->memory = strtoull(w[3], NULL, 10);
    else if (!strcmp(key, "used")) c->used = atoll(w[3]);
    else if (!strcmp(key, "busy")) c->busy = atoll(w[3]);
    else if (!strcmp(key, "celsius")) c->celsius = atoll(w[3]);
    else if (!strcmp(key, "milliwatts")) c->milliwatts = atoll(w[3]);
    else if (!strcmp(key, "numa")) c->numa = atoi(w[3]);
    else if (!strcmp(key, "architecture")) c->architecture = atoi(w[3]);
    else if (!strcmp(key, "error")) c->error = atoi(w[3]);
    else if (!strcmp(key, "recovery")) c->recovery = atoi(w[3]);
    else if (n < 5) return;
    else if (!strcmp(key, "capability")) c->capability[0] = atoi(w[3]), c->capability[1] = atoi(w[4]);
    else if (!strcmp(key, "pcie")) c->pcie[0] = atoi(w[3]), c->pcie[1] = atoi(w[4]);
    else if (!strcmp(key, "mig")) c->mig[0] = atoi(w[3]), c->mig[1] = atoi(w[4]);
    else if (!strcmp(key, "ecc")) c->ecc[0] = atoll(w[3]), c->ecc[1] = atoll(w[4]);
    else if (!strcmp(key, "rows")) c->rows[0] = atoi(w[3]), c->rows[1] = atoi(w[4]);
    else if (!strcmp(key, "link") && n >= 7 && atoi(w[3]) < MOST_LINKS) {
        Link *l = &c->links[atoi(w[3])];
        l->active = 1, l->version = (uint)atoi(w[4]), l->type = (uint)atoi(w[5]);
        copy(l->bus, sizeof l->bus, w[6]);
    } else if (!strcmp(key, "instance") && n >= 10 && c->instances < MOST_INSTANCES) {
        Instance *m = &c->instance[c->instances++];
        m->gi = (uint)atoi(w[3]), m->ci = (uint)atoi(w[4]), m->memory = strtoull(w[5], NULL, 10);
        m->gpu_slices = (uint)atoi(w[6]), m->compute_slices = (uint)atoi(w[7]);
        copy(m->uuid, sizeof m->uuid, w[8]), copy(m->name, sizeof m->name, w[9]);
    }
}

static void take(char **w, int n) {
    if (!strcmp(w[0], "gpu")) take_gpu(w, n);
    else if (!strcmp(w[0], "driver") && n > 1) copy(state.driver, sizeof state.driver, w[1]);
    else if (!strcmp(w[0], "cuda") && n > 1) state.cuda = atoi(w[1]);
    else if (!strcmp(w[0], "init") && n > 1) state.init = atoi(w[1]);
    else if (!strcmp(w[0], "ancestor") && n > 3)
        state.ancestor[atoi(w[1])][atoi(w[2])] = state.ancestor[atoi(w[2])][atoi(w[1])] = atoi(w[3]);
    else if (!strcmp(w[0], "fail") && n > 3 && state.failures < MOST_FAILURES) {
        Failure *f = &state.failure[state.failures++];
        copy(f->function, sizeof f->function, w[1]), f->gpu = atoi(w[2]), f->code = atoi(w[3]);
    } else if (!strcmp(w[0], "xid") && n > 5 && state.xids < MOST_XIDS)
        state.xid[state.xids++] =
            (Xid){strtoull(w[1], NULL, 10), strtoull(w[3], NULL, 10), atoi(w[2]), atoi(w[4]), atoi(w[5])};
}

/* Read the file again if it changed. Without a file there is no driver. */
static void refresh(void) {
    const char *path = getenv("GPUTILE_FAKE_NVML");
    struct stat now;
    FILE *file = NULL;
    if (path && !stat(path, &now)) {
        if (now.st_ino == read_as.st_ino && now.st_size == read_as.st_size &&
            now.st_mtim.tv_sec == read_as.st_mtim.tv_sec && now.st_mtim.tv_nsec == read_as.st_mtim.tv_nsec)
            return;
        file = fopen(path, "r");
    }
    memset(&state, 0, sizeof state);
    memset(&read_as, 0, sizeof read_as);
    state.init = DRIVER_NOT_LOADED;
    if (!file) return;
    state.init = OK;
    for (int i = 0; i < MOST_GPUS; i++) {
        Gpu *c = &state.gpu[i];
        c->numa = c->mig[0] = c->recovery = -1;
        c->busy = c->celsius = c->milliwatts = c->ecc[0] = c->ecc[1] = -1;
    }
    char line[1024];
    while (fgets(line, sizeof line, file)) {
        char *words[WORDS], *rest = NULL;
        int n = 0;
        for (char *w = strtok_r(line, "\t\n", &rest); w && n < WORDS; w = strtok_r(NULL, "\t\n", &rest)) words[n++] = w;
        if (n) take(words, n);
    }
    fclose(file);
    read_as = now;
}

static int planned(const char *function, int gpu) {
    for (int i = 0; i < state.failures; i++)
        if (!strcmp(state.failure[i].function, function) && (state.failure[i].gpu < 0 || state.failure[i].gpu == gpu))
            return state.failure[i].code;
    return OK;
}

/* Every function opens with one of these two and ends by `return leave(code)`. */
static int enter(const char *function) {
    pthread_mutex_lock(&mutex);
    refresh();
    if (!initialised) return UNINITIALIZED;
    return state.init ? state.init : planned(function, -1);
}

static int leave(int code) {
    pthread_mutex_unlock(&mutex);
    return code;
}

static ulong64 milliseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (ulong64)now.tv_sec * 1000 + (ulong64)now.tv_nsec / 1000000;
}

static int number_of(const char *uuid) {
    int n = 0;
    while (n < MOST_HANDLES - 1 && *handle_of[n] && strcmp(handle_of[n], uuid)) n++;
    copy(handle_of[n], sizeof handle_of[n], uuid);
    return n;
}

/* The index of the GPU whose handle it is; -1 if the GPU is gone. */
static int index_of(void *handle) {
    size_t n = (size_t)((char *)handle - gpu_handle);
    for (int i = 0; n < MOST_HANDLES && i < state.gpus; i++)
        if (!strcmp(state.gpu[i].uuid, handle_of[n])) return i;
    return -1;
}

/* Find the GPU, and the MIG instance if the handle is of one. */
static int find(const char *function, void *handle, Gpu **gpu, Instance **instance) {
    int code = enter(function), number = -1;
    size_t m = (size_t)((char *)handle - &instance_handle[0][0]);
    if (instance) *instance = NULL;
    if (code) return code;
    if ((size_t)((char *)handle - gpu_handle) >= MOST_HANDLES) {
        if (m >= sizeof instance_handle || !instance) return INVALID_ARGUMENT;
        handle = &gpu_handle[m / MOST_INSTANCES], number = m % MOST_INSTANCES;
    }
    int i = index_of(handle);
    if (i < 0) return GPU_IS_LOST;
    *gpu = &state.gpu[i];
    if (number >= (*gpu)->instances) return INVALID_ARGUMENT;
    if (number >= 0) *instance = &(*gpu)->instance[number];
    return (*gpu)->error ? (*gpu)->error : planned(function, i);
}

#define GPU(handle)                              \
    Gpu *c = NULL;                               \
    int code = find(__func__, handle, &c, NULL); \
    if (code) return leave(code)
#define GPU_OR_INSTANCE(handle)                \
    Gpu *c = NULL;                             \
    Instance *m = NULL;                        \
    int code = find(__func__, handle, &c, &m); \
    if (code) return leave(code)

static int text(char *to, uint size, const char *from) {
    if (strlen(from) >= size) return INSUFFICIENT_SIZE;
    strcpy(to, from);
    return OK;
}

int nvmlInitWithFlags(uint flags) {
    (void)flags;
    pthread_mutex_lock(&mutex);
    refresh();
    if (!state.init) initialised++;
    return leave(state.init);
}
int nvmlShutdown(void) {
    pthread_mutex_lock(&mutex);
    if (!initialised) return leave(UNINITIALIZED);
    initialised--;
    return leave(OK);
}
const char *nvmlErrorString(int code) {
    (void)code;
    return "an error of the fake NVML";
}

int nvmlSystemGetDriverVersion(char *version, uint size) {
    int code = enter(__func__);
    return leave(code ? code : text(version, size, state.driver));
}
int nvmlSystemGetCudaDriverVersion(int *version) {
    int code = enter(__func__);
    *version = state.cuda;
    return leave(code);
}
int nvmlDeviceGetCount_v2(uint *count) {
    int code = enter(__func__);
    *count = (uint)state.gpus;
    return leave(code);
}
int nvmlDeviceGetHandleByIndex_v2(uint i, void **handle) {
    int code = enter(__func__);
    if (code) return leave(code);
    if (i >= (uint)state.gpus) return leave(INVALID_ARGUMENT);
    *handle = &gpu_handle[number_of(state.gpu[i].uuid)];
    return leave(state.gpu[i].error ? state.gpu[i].error : planned(__func__, (int)i));
}
int nvmlDeviceGetUUID(void *device, char *to, uint size) {
    GPU_OR_INSTANCE(device);
    return leave(text(to, size, m ? m->uuid : c->uuid));
}
int nvmlDeviceGetName(void *device, char *to, uint size) {
    GPU_OR_INSTANCE(device);
    return leave(text(to, size, m ? m->name : c->name));
}
int nvmlDeviceGetMemoryInfo(void *device, Memory *memory) {
    GPU_OR_INSTANCE(device);
    ulong64 total = m ? m->memory : c->memory;
    if (!total) return leave(NOT_SUPPORTED);
    ulong64 used = m ? 0 : (ulong64)c->used;
    *memory = (Memory){total, total - used, used};
    return leave(OK);
}
int nvmlDeviceGetArchitecture(void *device, uint *architecture) {
    GPU(device);
    *architecture = (uint)c->architecture;
    return leave(c->architecture ? OK : NOT_SUPPORTED);
}
int nvmlDeviceGetPciInfo_v3(void *device, PciInfo *info) {
    GPU(device);
    memset(info, 0, sizeof *info);
    return leave(text(info->bus_id, sizeof info->bus_id, c->bus));
}
int nvmlDeviceGetMemoryAffinity(void *device, uint size, unsigned long *nodes, int scope) {
    GPU(device);
    (void)scope;
    if (c->numa < 0) return leave(NOT_SUPPORTED);
    memset(nodes, 0, size * sizeof *nodes);
    nodes[c->numa / 64] = 1ul << c->numa % 64;
    return leave(OK);
}
int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) {
    GPU(device);
    *major = c->capability[0], *minor = c->capability[1];
    return leave(OK);
}
int nvmlDeviceGetMaxPcieLinkGeneration(void *device, uint *generation) {
    GPU(device);
    *generation = (uint)c->pcie[0];
    return leave(c->pcie[0] ? OK : NOT_SUPPORTED);
}
int nvmlDeviceGetMaxPcieLinkWidth(void *device, uint *width) {
    GPU(device);
    *width = (uint)c->pcie[1];
    return leave(c->pcie[1] ? OK : NOT_SUPPORTED);
}
int nvmlDeviceGetTopologyCommonAncestor(void *one, void *other, int *level) {
    GPU(one);
    int i = index_of(one), j = index_of(other);
    if (j < 0) return leave(GPU_IS_LOST);
    *level = state.ancestor[i][j];
    return leave(state.gpu[j].error);
}
int nvmlDeviceGetNvLinkState(void *device, uint link, uint *active) {
    GPU(device);
    int any = 0;
    for (int l = 0; l < MOST_LINKS; l++) any |= c->links[l].active;
    if (!any) return leave(NOT_SUPPORTED);
    if (link >= 18) return leave(INVALID_ARGUMENT);
    *active = (uint)c->links[link].active;
    return leave(OK);
}
int nvmlDeviceGetNvLinkVersion(void *device, uint link, uint *version) {
    GPU(device);
    if (link >= MOST_LINKS) return leave(INVALID_ARGUMENT);
    *version = c->links[link].version;
    return leave(OK);
}
int nvmlDeviceGetNvLinkRemoteDeviceType(void *device, uint link, uint *type) {
    GPU(device);
    if (link >= MOST_LINKS) return leave(INVALID_ARGUMENT);
    *type = c->links[link].type;
    return leave(OK);
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *device, uint link, PciInfo *info) {
    GPU(device);
    if (link >= MOST_LINKS) return leave(INVALID_ARGUMENT);
    memset(info, 0, sizeof *info);
    return leave(text(info->bus_id, sizeof info->bus_id, c->links[link].bus));
}
int nvmlDeviceGetMigMode(void *device, uint *current, uint *pending) {
    GPU(device);
    if (c->mig[0] < 0) return leave(NOT_SUPPORTED);
    *current = (uint)c->mig[0], *pending = (uint)c->mig[1];
    return leave(OK);
}
int nvmlDeviceGetMaxMigDeviceCount(void *device, uint *count) {
    GPU(device);
    *count = c->mig[0] < 0 ? 0 : MOST_INSTANCES;
    return leave(OK);
}
int nvmlDeviceGetMigDeviceHandleByIndex(void *device, uint i, void **handle) {
    GPU(device);
    if (i >= MOST_INSTANCES) return leave(INVALID_ARGUMENT);
    if ((int)i >= c->instances) return leave(NOT_FOUND);
    *handle = &instance_handle[(char *)device - gpu_handle][i];
    return leave(OK);
}
int nvmlDeviceGetGpuInstanceId(void *device, uint *id) {
    GPU_OR_INSTANCE(device);
    if (!m) return leave(INVALID_ARGUMENT);
    *id = m->gi;
    return leave(OK);
}
int nvmlDeviceGetComputeInstanceId(void *device, uint *id) {
    GPU_OR_INSTANCE(device);
    if (!m) return leave(INVALID_ARGUMENT);
    *id = m->ci;
    return leave(OK);
}
int nvmlDeviceGetAttributes_v2(void *device, Attributes *attributes) {
    GPU_OR_INSTANCE(device);
    if (!m) return leave(INVALID_ARGUMENT);
    memset(attributes, 0, sizeof *attributes);
    attributes->gpu_slices = m->gpu_slices, attributes->compute_slices = m->compute_slices;
    attributes->memory_mb = m->memory >> 20;
    return leave(OK);
}
int nvmlDeviceGetRemappedRows(void *device, uint *correctable, uint *uncorrectable, uint *pending, uint *failure) {
    GPU(device);
    if (c->capability[0] < 8) return leave(NOT_SUPPORTED);
    *correctable = *uncorrectable = 0, *pending = (uint)c->rows[0], *failure = (uint)c->rows[1];
    return leave(OK);
}
int nvmlDeviceGetRetiredPagesPendingStatus(void *device, uint *pending) {
    GPU(device);
    if (c->capability[0] >= 8) return leave(NOT_SUPPORTED);
    *pending = (uint)c->rows[0];
    return leave(OK);
}
int nvmlDeviceGetFieldValues(void *device, int count, FieldValue *values) {
    GPU(device);
    for (int i = 0; i < count; i++) {
        values[i].code = values[i].field == 230 && c->recovery >= 0 ? OK : NOT_SUPPORTED;
        values[i].type = 1, values[i].value.u = (uint)c->recovery;
    }
    return leave(OK);
}

static int known(long long value, uint *to) {
    *to = (uint)value;
    return value < 0 ? NOT_SUPPORTED : OK;
}
int nvmlDeviceGetUtilizationRates(void *device, uint rates[2]) {
    GPU(device);
    rates[1] = 0;
    return leave(known(c->busy, &rates[0]));
}
int nvmlDeviceGetTemperature(void *device, int sensor, uint *celsius) {
    GPU(device);
    return leave(sensor ? INVALID_ARGUMENT : known(c->celsius, celsius));
}
int nvmlDeviceGetPowerUsage(void *device, uint *milliwatts) {
    GPU(device);
    return leave(known(c->milliwatts, milliwatts));
}
int nvmlDeviceGetTotalEccErrors(void *device, int type, int counter, ulong64 *count) {
    GPU(device);
    if (type < 0 || type > 1 || counter != 1 || c->ecc[type] < 0) return leave(NOT_SUPPORTED);
    *count = (ulong64)c->ecc[type];
    return leave(OK);
}

int nvmlEventSetCreate(void **set) {
    int code = enter(__func__);
    if (code) return leave(code);
    EventSet *s = calloc(1, sizeof *s);
    for (int i = 0; i < state.xids; i++)
        if (state.xid[i].sequence > s->delivered) s->delivered = state.xid[i].sequence;
    *set = s;
    return leave(OK);
}
int nvmlDeviceGetSupportedEventTypes(void *device, ulong64 *types) {
    GPU(device);
    *types = 0x1 | 0x2 | 0x8;
    return leave(OK);
}
int nvmlDeviceRegisterEvents(void *device, ulong64 types, void *set) {
    GPU(device);
    ((EventSet *)set)->types[(char *)device - gpu_handle] |= types;
    return leave(OK);
}
/* The next event that has not been delivered, or TIMEOUT. */
static int next_event(const char *function, EventSet *s, Event *event) {
    int code = enter(function);
    for (int n = 0; !code && n < MOST_HANDLES; n++) {
        int i = s->types[n] ? index_of(&gpu_handle[n]) : 0;
        if (i < 0 || (s->types[n] && state.gpu[i].error == GPU_IS_LOST)) code = GPU_IS_LOST;
    }
    for (int i = 0; i < state.xids && (!code || code == GPU_IS_LOST); i++) {
        Xid *x = &state.xid[i];
        if (x->sequence <= s->delivered || x->gpu < 0 || x->gpu >= state.gpus) continue;
        int n = number_of(state.gpu[x->gpu].uuid);
        if (!(s->types[n] & 0x8)) continue;
        s->delivered = x->sequence;
        *event = (Event){&gpu_handle[n], 0x8, x->code, (uint)x->gi, (uint)x->ci};
        return leave(OK);
    }
    return leave(code ? code : TIMEOUT);
}

/* A descriptor that can be read once something has been written beside the machine's file; -1 if there can be none. */
static int watch_machine(void) {
    const char *path = getenv("GPUTILE_FAKE_NVML");
    char directory[PATH_MAX];
    int watch = path && strlen(path) < sizeof directory ? inotify_init1(IN_NONBLOCK | IN_CLOEXEC) : -1;
    if (watch < 0) return -1;
    if (inotify_add_watch(watch, dirname(strcpy(directory, path)), IN_MODIFY | IN_MOVED_TO) >= 0) return watch;
    close(watch);
    return -1;
}

/* As with a driver, whoever waits needs no processor's time; without a watch, the file is looked at every 50 ms. */
int nvmlEventSetWait_v2(void *set, Event *event, uint timeout_ms) {
    int code = next_event(__func__, set, event);
    if (code != TIMEOUT || !timeout_ms) return code;
    struct pollfd changed = {watch_machine(), POLLIN, 0};
    char told[4096];
    for (ulong64 now = milliseconds(), until = now + timeout_ms;; now = milliseconds()) {
        code = next_event(__func__, set, event);
        if (code != TIMEOUT || now >= until) break;
        poll(&changed, 1, changed.fd < 0 && until - now > 50 ? 50 : (int)(until - now));
        while (changed.fd >= 0 && read(changed.fd, told, sizeof told) > 0) continue;
    }
    if (changed.fd >= 0) close(changed.fd);
    return code;
}
int nvmlEventSetFree(void *set) {
    free(set);
    return OK;
}
