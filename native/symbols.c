#define _GNU_SOURCE
#include "symbols.h"

#include <elf.h>
#include <link.h>
#include <stdint.h>
#include <string.h>

struct search {
    const char *object, *symbol;
    void *found;
};

struct tables {
    const ElfW(Sym) * symbols;
    const char *names;
    const uint32_t *gnu_hash;
    const ElfW(Word) * hash;
};

static uint32_t gnu_hash_of(const char *name) {
    uint32_t value = 5381;
    for (; *name; name++) value = value * 33 + (unsigned char)*name;
    return value;
}

static void *defined(const struct tables *t, size_t index, const char *name, uintptr_t base) {
    const ElfW(Sym) *symbol = &t->symbols[index];
    if (symbol->st_shndx == SHN_UNDEF || strcmp(t->names + symbol->st_name, name)) return NULL;
    if (ELF64_ST_TYPE(symbol->st_info) != STT_FUNC && ELF64_ST_TYPE(symbol->st_info) != STT_OBJECT) return NULL;
    return (void *)(base + symbol->st_value);
}

/* DT_GNU_HASH: {buckets, first symbol, words of the Bloom filter, shift}, filter, buckets, chains. */
static void *by_gnu_hash(const struct tables *t, const char *name, uintptr_t base) {
    const uint32_t *table = t->gnu_hash, wanted = gnu_hash_of(name);
    const uint32_t buckets = table[0], first = table[1];
    const uint32_t *bucket = table + 4 + table[2] * (sizeof(ElfW(Addr)) / sizeof(uint32_t)), *chain = bucket + buckets;
    uint32_t index = buckets ? bucket[wanted % buckets] : 0;
    if (index < first) return NULL;
    for (;; index++) {
        uint32_t value = chain[index - first];
        if ((value | 1) == (wanted | 1)) {
            void *found = defined(t, index, name, base);
            if (found) return found;
        }
        if (value & 1) return NULL;
    }
}

static int look(struct dl_phdr_info *info, size_t size, void *data) {
    struct search *search = data;
    struct tables t = {0};
    const char *name = strrchr(info->dlpi_name, '/');
    uintptr_t base = info->dlpi_addr;
    (void)size;
    name = name ? name + 1 : info->dlpi_name;
    if (strncmp(name, search->object, strlen(search->object))) return 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
        for (const ElfW(Dyn) *d = (const void *)(base + info->dlpi_phdr[i].p_vaddr); d->d_tag != DT_NULL; d++) {
            /* glibc relocates these pointers where it can write them; an address below the base is not relocated. */
            uintptr_t at = d->d_un.d_ptr < base ? base + d->d_un.d_ptr : d->d_un.d_ptr;
            if (d->d_tag == DT_SYMTAB) t.symbols = (const void *)at;
            else if (d->d_tag == DT_STRTAB) t.names = (const void *)at;
            else if (d->d_tag == DT_GNU_HASH) t.gnu_hash = (const void *)at;
            else if (d->d_tag == DT_HASH) t.hash = (const void *)at;
        }
    }
    if (!t.symbols || !t.names) return 0;
    if (t.gnu_hash) search->found = by_gnu_hash(&t, search->symbol, base);
    else if (t.hash) /* DT_HASH: {buckets, symbols}; looked up seldom, so all are compared */
        for (ElfW(Word) i = 0; i < t.hash[1] && !search->found; i++) search->found = defined(&t, i, search->symbol, base);
    return search->found != NULL;
}

void *gputile_elf_symbol(const char *object, const char *symbol) {
    struct search search = {object, symbol, NULL};
    dl_iterate_phdr(look, &search);
    return search.found;
}
