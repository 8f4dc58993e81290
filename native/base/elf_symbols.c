/* Reads the dynamic sections of loaded objects: their symbol tables and hash tables. */
#define _GNU_SOURCE
#include "base/elf_symbols.h"

#include <elf.h>
#include <link.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/loaded_objects.h"

struct search {
    const char *object, *symbol;
    void *found;
};

struct relocations {
    const ElfW(Rela) * first;
    size_t bytes;
};

struct tables {
    const ElfW(Sym) * symbols;
    const char *names;
    size_t names_size;
    const uint32_t *gnu_hash;
    const ElfW(Word) * hash;
    struct relocations of_data, of_calls;
    size_t relative; /* the number of relocations at the start of `of_data` that name no symbol */
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

/* Read an object's dynamic section. Returns false if the object has no symbols. */
static bool read_tables(const struct dl_phdr_info *info, struct tables *t) {
    uintptr_t base = info->dlpi_addr;
    memset(t, 0, sizeof *t);
    for (int i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
        for (const ElfW(Dyn) *d = (const void *)(base + info->dlpi_phdr[i].p_vaddr); d->d_tag != DT_NULL; d++) {
            /* glibc relocates these pointers if it can write them. An address below the base is not relocated. */
            uintptr_t at = d->d_un.d_ptr < base ? base + d->d_un.d_ptr : d->d_un.d_ptr;
            if (d->d_tag == DT_SYMTAB) t->symbols = (const void *)at;
            else if (d->d_tag == DT_STRTAB) t->names = (const void *)at;
            else if (d->d_tag == DT_STRSZ) t->names_size = d->d_un.d_val;
            else if (d->d_tag == DT_GNU_HASH) t->gnu_hash = (const void *)at;
            else if (d->d_tag == DT_HASH) t->hash = (const void *)at;
            else if (d->d_tag == DT_RELA) t->of_data.first = (const void *)at;
            else if (d->d_tag == DT_RELASZ) t->of_data.bytes = d->d_un.d_val;
            else if (d->d_tag == DT_RELACOUNT) t->relative = d->d_un.d_val;
            else if (d->d_tag == DT_JMPREL) t->of_calls.first = (const void *)at;
            else if (d->d_tag == DT_PLTRELSZ) t->of_calls.bytes = d->d_un.d_val;
        }
    }
    return t->symbols && t->names;
}

static int look(struct dl_phdr_info *info, size_t size, void *data) {
    struct search *search = data;
    struct tables t;
    const char *name = strrchr(info->dlpi_name, '/');
    uintptr_t base = info->dlpi_addr;
    (void)size;
    name = name ? name + 1 : info->dlpi_name;
    if (strncmp(name, search->object, strlen(search->object)) || !read_tables(info, &t)) return 0;
    if (t.gnu_hash) search->found = by_gnu_hash(&t, search->symbol, base);
    else if (t.hash) /* DT_HASH: {buckets, symbols}. All symbols are compared, because this case is rare. */
        for (ElfW(Word) i = 0; i < t.hash[1] && !search->found; i++)
            search->found = defined(&t, i, search->symbol, base);
    return search->found != NULL;
}

void *gputile_elf_symbol(const char *object, const char *symbol) {
    struct search search = {object, symbol, NULL};
    gputile_loaded_objects(look, &search);
    return search.found;
}

struct imports {
    bool (*suspect)(const char *);
    const char *found;
    unsigned long long seen, loaded;
};

static size_t end_of_symbols(const struct relocations *relocations, size_t from, size_t end) {
    for (size_t i = from; relocations->first && i < relocations->bytes / sizeof *relocations->first; i++) {
        size_t index = ELF64_R_SYM(relocations->first[i].r_info);
        if (index >= end) end = index + 1;
    }
    return end;
}

/* Only DT_HASH contains the number of symbols, but new objects lack DT_HASH. Imported symbols are relocated. So without
 * DT_HASH, the symbols up to the last one that a relocation names are read. The data after them may be unrelated: tools
 * that change names in a library (patchelf, for most Python wheels) append the new names. */
static size_t most_symbols(const struct tables *t) {
    return t->hash ? t->hash[1] : end_of_symbols(&t->of_calls, 0, end_of_symbols(&t->of_data, t->relative, 0));
}

static int look_imports(struct dl_phdr_info *info, size_t size, void *data) {
    struct imports *imports = data;
    struct tables t;
    if (size >= offsetof(struct dl_phdr_info, dlpi_subs)) imports->loaded = info->dlpi_adds;
    if (imports->loaded && imports->loaded == imports->seen) return 1;
    if (!read_tables(info, &t)) return 0;
    for (size_t i = 1, count = most_symbols(&t); i < count && !imports->found; i++) {
        const ElfW(Sym) *symbol = &t.symbols[i];
        if (symbol->st_shndx != SHN_UNDEF || symbol->st_name >= t.names_size) continue;
        if (imports->suspect(t.names + symbol->st_name)) imports->found = t.names + symbol->st_name;
    }
    return imports->found != NULL;
}

const char *gputile_elf_import(bool (*suspect)(const char *name)) {
    static unsigned long long seen; /* the number of loaded objects when nothing was found */
    struct imports imports = {suspect, NULL, __atomic_load_n(&seen, __ATOMIC_RELAXED), 0};
    gputile_loaded_objects(look_imports, &imports);
    if (!imports.found) __atomic_store_n(&seen, imports.loaded, __ATOMIC_RELAXED);
    return imports.found;
}
