/* Keeps allocations in a hash table under one lock. */
#include "accounting/allocation_table.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/fork_handlers.h"

enum { BUCKETS = 4096 };

struct link {
    struct gputile_allocation allocation;
    struct link *next;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct link *bucket[BUCKETS];

static struct link **head(enum gputile_allocation_kind kind, uint64_t key) {
    uint64_t mixed = (key ^ ((uint64_t)kind << 56)) * 0x9e3779b97f4a7c15u;
    return &bucket[mixed >> 52];
}

static struct link **find(enum gputile_allocation_kind kind, uint64_t key) {
    struct link **at = head(kind, key);
    while (*at && ((*at)->allocation.kind != kind || (*at)->allocation.key != key)) at = &(*at)->next;
    return at;
}

static void remove_link(struct link **at, struct gputile_allocation *taken) {
    struct link *link = *at;
    *taken = link->allocation;
    *at = link->next;
    free(link);
}

void gputile_allocation_add(struct gputile_allocation allocation) {
    struct link *link = malloc(sizeof *link);
    if (!link) return; /* the bytes of the allocation stay counted until the process ends */
    if (!allocation.references) allocation.references = 1;
    pthread_mutex_lock(&mutex);
    struct link **at = head(allocation.kind, allocation.key);
    *link = (struct link){allocation, *at};
    *at = link;
    pthread_mutex_unlock(&mutex);
}

bool gputile_allocation_take(enum gputile_allocation_kind kind, uint64_t key, struct gputile_allocation *taken) {
    pthread_mutex_lock(&mutex);
    struct link **at = find(kind, key);
    bool last = *at && --(*at)->allocation.references == 0;
    if (last) remove_link(at, taken);
    pthread_mutex_unlock(&mutex);
    return last;
}

bool gputile_allocation_add_reference(enum gputile_allocation_kind kind, uint64_t key) {
    pthread_mutex_lock(&mutex);
    struct link *link = *find(kind, key);
    if (link) link->allocation.references++;
    pthread_mutex_unlock(&mutex);
    return link != NULL;
}

bool gputile_allocation_find(enum gputile_allocation_kind kind, uint64_t key, struct gputile_allocation *found) {
    pthread_mutex_lock(&mutex);
    struct link *link = *find(kind, key);
    if (link) *found = link->allocation;
    pthread_mutex_unlock(&mutex);
    return link != NULL;
}

bool gputile_allocation_take_of_owner(uint64_t owner, struct gputile_allocation *taken) {
    bool any = false;
    pthread_mutex_lock(&mutex);
    for (int i = 0; i < BUCKETS && !any; i++)
        for (struct link **at = &bucket[i]; *at && !any;)
            if ((*at)->allocation.owner == owner && (*at)->allocation.kind != GPUTILE_MAPPING)
                remove_link(at, taken), any = true;
            else at = &(*at)->next;
    pthread_mutex_unlock(&mutex);
    return any;
}

/* The lists are not freed, because a thread of the parent may have been changing them during the fork. */
static void in_child(void) {
    pthread_mutex_init(&mutex, NULL);
    memset(bucket, 0, sizeof bucket);
}

static const struct gputile_fork_handlers handlers = {.order = GPUTILE_FORK_ALLOCATION_TABLE, .in_child = in_child};
static const struct gputile_fork_handlers *const registered GPUTILE_FORK_HANDLERS = &handlers;
