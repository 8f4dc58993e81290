#include "holdings.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "gate.h"
#include "region.h"

enum { BUCKETS = 4096, SMALL = 1 << 20, GRAIN = 512, BLOCK = 2 << 20 };

struct link {
    struct gputile_holding holding;
    struct link *next;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct link *bucket[BUCKETS];

static struct link **head(enum gputile_kind kind, uint64_t key) {
    uint64_t mixed = (key ^ ((uint64_t)kind << 56)) * 0x9e3779b97f4a7c15u;
    return &bucket[mixed >> 52];
}

static struct link **find(enum gputile_kind kind, uint64_t key) {
    struct link **at = head(kind, key);
    while (*at && ((*at)->holding.kind != kind || (*at)->holding.key != key)) at = &(*at)->next;
    return at;
}

static void remove_link(struct link **at, struct gputile_holding *taken) {
    struct link *link = *at;
    *taken = link->holding;
    *at = link->next;
    free(link);
}

void gputile_holding_add(struct gputile_holding holding) {
    struct link *link = malloc(sizeof *link);
    if (!link) return; /* its bytes stay counted until the process ends */
    if (!holding.references) holding.references = 1;
    pthread_mutex_lock(&mutex);
    struct link **at = head(holding.kind, holding.key);
    *link = (struct link){holding, *at};
    *at = link;
    pthread_mutex_unlock(&mutex);
}

bool gputile_holding_take(enum gputile_kind kind, uint64_t key, struct gputile_holding *taken) {
    pthread_mutex_lock(&mutex);
    struct link **at = find(kind, key);
    bool last = *at && --(*at)->holding.references == 0;
    if (last) remove_link(at, taken);
    pthread_mutex_unlock(&mutex);
    return last;
}

bool gputile_holding_refer(enum gputile_kind kind, uint64_t key) {
    pthread_mutex_lock(&mutex);
    struct link *link = *find(kind, key);
    if (link) link->holding.references++;
    pthread_mutex_unlock(&mutex);
    return link != NULL;
}

bool gputile_holding_find(enum gputile_kind kind, uint64_t key, struct gputile_holding *found) {
    pthread_mutex_lock(&mutex);
    struct link *link = *find(kind, key);
    if (link) *found = link->holding;
    pthread_mutex_unlock(&mutex);
    return link != NULL;
}

bool gputile_holding_take_of(uint64_t owner, struct gputile_holding *taken) {
    bool any = false;
    pthread_mutex_lock(&mutex);
    for (int i = 0; i < BUCKETS && !any; i++)
        for (struct link **at = &bucket[i]; *at && !any;)
            if ((*at)->holding.owner == owner && (*at)->holding.kind != GPUTILE_MAPPING) remove_link(at, taken), any = true;
            else at = &(*at)->next;
    pthread_mutex_unlock(&mutex);
    return any;
}

CUresult gputile_reserve(int card, uint64_t bytes) {
    const struct gputile_card *limit = &gputile_limits()->card[card];
    return gputile_region_reserve((unsigned)card, bytes, limit->bytes) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void gputile_give_back(int card, uint64_t bytes) { gputile_region_return((unsigned)card, bytes); }

uint64_t gputile_footprint(uint64_t bytes) {
    uint64_t unit = bytes < SMALL ? GRAIN : BLOCK;
    return bytes > UINT64_MAX - unit ? UINT64_MAX : (bytes + unit - 1) / unit * unit;
}

/* Not freed: a thread that the child does not have may have been changing the lists. */
void gputile_holdings_in_child(void) {
    pthread_mutex_init(&mutex, NULL);
    memset(bucket, 0, sizeof bucket);
}
