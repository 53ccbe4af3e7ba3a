/* SPDX-License-Identifier: Apache-2.0 */
/* Assertions, byte-accounting memory and the seeded generator of base/base.h. */
#include "base/base.h"

#include <stdarg.h>
#include <malloc.h>
#include <stdatomic.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <time.h>
#include <kvroute/types.h>

/* Large blocks are mapped, so that they go back to the system when they are given back. Those of HUGE_PAGE, as whoever cuts up large
 * blocks asks for, lie so that the system can take one page for each; where it has none, they are like the others. */
enum { MAPPED_FROM = 64 << 10, HUGE_PAGE = 2 << 20 };

static void *map_large(size_t size)
{
    size_t extra = size == HUGE_PAGE ? HUGE_PAGE : 0;
    char *p = mmap(NULL, size + extra, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return NULL;
    if (!extra) return p;
    size_t before = (HUGE_PAGE - (uintptr_t)p % HUGE_PAGE) % HUGE_PAGE;
    if (before) (void)munmap(p, before);
    if (before < extra) (void)munmap(p + before + size, extra - before);
#ifdef MADV_HUGEPAGE
    (void)madvise(p + before, size, MADV_HUGEPAGE);
#endif
    return p + before;
}

static void *libc_resize(void *, void *ptr, size_t old_size, size_t new_size)
{
    bool was = old_size >= MAPPED_FROM, will = new_size >= MAPPED_FROM;
    if (!was && !will) {
        if (new_size) return realloc(ptr, new_size);
        free(ptr);
        return NULL;
    }
    void *p = NULL;
    if (new_size && !(p = will ? map_large(new_size) : malloc(new_size))) return NULL;
    if (p && ptr) memcpy(p, ptr, KVR_MIN(old_size, new_size));
    if (was) (void)munmap(ptr, old_size);
    else free(ptr);
    return p;
}

const struct kvr_alloc *kvr_alloc_libc(void)
{
    static const struct kvr_alloc libc_alloc = {libc_resize, NULL};
    return &libc_alloc;
}

static uint64_t monotonic_now(void *)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

const struct kvr_clock *kvr_clock_monotonic(void)
{
    static const struct kvr_clock clock = {monotonic_now, NULL};
    return &clock;
}

int kvr_refuse(char *err, size_t cap, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(err, cap, format, args);
    va_end(args);
    return -1;
}

/* Without the system's generator: what an outsider can hardly guess. */
static uint64_t guess_secret(void)
{
    uint64_t local = 0;
    return kvr_mix64(monotonic_now(NULL)) ^ kvr_mix64((uint64_t)(uintptr_t)&local) ^ (uint64_t)(uintptr_t)&guess_secret;
}

uint64_t kvr_secret(void)
{
    static _Atomic uint64_t secret;
    uint64_t s = atomic_load_explicit(&secret, memory_order_relaxed), fresh = 0;
    if (s) return s;
    const char *given = getenv("KVR_SEED");
    if (given && *given) fresh = kvr_mix64(strtoull(given, NULL, 10) + 1);
    else if (getrandom(&fresh, sizeof fresh, GRND_NONBLOCK) != sizeof fresh) fresh = guess_secret();
    if (!fresh) fresh = 1;
    return atomic_compare_exchange_strong(&secret, &s, fresh) ? fresh : s;
}

const char *kvr_strerror(int code)
{
    switch (code < 0 ? -code : code) {
    case 0: return "success";
#define KVR_ERROR_TEXT(name, value, text)                                                                                                  \
    case value: return text;
        KVR_ERROR_MAP(KVR_ERROR_TEXT)
#undef KVR_ERROR_TEXT
    default: return "unknown error";
    }
}

const char *kvr_err_name(int code)
{
    switch (code < 0 ? -code : code) {
    case 0: return "KVR_OK";
#define KVR_ERROR_NAME(name, value, text)                                                                                                  \
    case value: return "KVR_E" #name;
        KVR_ERROR_MAP(KVR_ERROR_NAME)
#undef KVR_ERROR_NAME
    default: return "KVR_EUNKNOWN";
    }
}

const char *kvr_version(void)
{
    return KVR_VERSION_STRING;
}

const char *kvr_tier_name(enum kvr_tier tier)
{
    static const char *const names[] = {"device", "host_pinned", "disk", "external"};
    return (unsigned)tier < KVR_ARRAY_LEN(names) ? names[tier] : NULL;
}

int kvr_tier_of_medium(const char *medium, size_t len, enum kvr_tier *out)
{
    static const struct {
        const char *name;
        enum kvr_tier tier;
    } rows[] = {
        {"", KVR_TIER_DEVICE},
        {"GPU", KVR_TIER_DEVICE},
        {"DEVICE", KVR_TIER_DEVICE},
        {"CPU", KVR_TIER_HOST_PINNED},
        {"CPU_PINNED", KVR_TIER_HOST_PINNED},
        {"CPU_TIER1", KVR_TIER_HOST_PINNED},
        {"CPU_TIER2", KVR_TIER_DISK},
        {"DISK", KVR_TIER_DISK},
        {"NVME", KVR_TIER_DISK},
        {"STORAGE", KVR_TIER_DISK},
        {"FS", KVR_TIER_DISK},
        {"EXTERNAL", KVR_TIER_EXTERNAL},
        {"NETWORK", KVR_TIER_EXTERNAL},
        {"REMOTE", KVR_TIER_EXTERNAL},
        {"SHARED", KVR_TIER_EXTERNAL},
        {"SHARED_STORAGE", KVR_TIER_EXTERNAL},
    };
    for (size_t i = 0; i < KVR_ARRAY_LEN(rows); i++)
        if (strlen(rows[i].name) == len && (len == 0 || strncasecmp(rows[i].name, medium, len) == 0)) {
            *out = rows[i].tier;
            return 0;
        }
    return -KVR_EINVAL;
}

int kvr_worker_cmp(struct kvr_worker a, struct kvr_worker b)
{
    if (a.worker_id != b.worker_id) return a.worker_id < b.worker_id ? -1 : 1;
    return a.dp_rank == b.dp_rank ? 0 : a.dp_rank < b.dp_rank ? -1 : 1;
}

void kvr_mem_init(struct kvr_mem *m, const struct kvr_alloc *a, size_t bytes_max)
{
    m->a = a ? *a : *kvr_alloc_libc();
    m->bytes = 0;
    m->bytes_max = bytes_max;
}

void *kvr_mem_resize(struct kvr_mem *m, void *ptr, size_t old_size, size_t new_size)
{
    if (new_size > old_size && m->bytes_max) {
        size_t more = new_size - old_size;
        if (more > m->bytes_max || m->bytes > m->bytes_max - more) return NULL;
    }
    void *p = m->a.resize(m->a.ctx, ptr, old_size, new_size);
    if (!p && new_size) return NULL;
    m->bytes = m->bytes - old_size + new_size;
    return p;
}

void kvr_mem_trim(const struct kvr_mem *m)
{
#ifdef __GLIBC__
    if (m->a.resize == libc_resize) (void)malloc_trim(0);
#else
    (void)m;
#endif
}

void *kvr_mem_get(struct kvr_mem *m, size_t size)
{
    return kvr_mem_resize(m, NULL, 0, size);
}

void *kvr_mem_zget(struct kvr_mem *m, size_t size)
{
    void *p = kvr_mem_get(m, size);
    if (p) memset(p, 0, size);
    return p;
}

void kvr_mem_put(struct kvr_mem *m, void *ptr, size_t size)
{
    if (ptr) kvr_mem_resize(m, ptr, size, 0);
}

int kvr_mem_grow(struct kvr_mem *m, void **ptr, size_t *cap, size_t need, size_t elem)
{
    if (need <= *cap) return 0;
    size_t n = *cap ? *cap : 8;
    while (n < need) {
        if (n > SIZE_MAX / 2 / elem) return -KVR_ENOMEM;
        n *= 2;
    }
    void *p = kvr_mem_resize(m, *ptr, *cap * elem, n * elem);
    if (!p) return -KVR_ENOMEM;
    *ptr = p;
    *cap = n;
    return 0;
}

bool kvr_grow(void *list, size_t *cap, size_t need, size_t elem)
{
    void *p;
    size_t n = need + need / 2;
    if (need <= *cap) return true;
    memcpy(&p, list, sizeof p); /* a pointer of another type */
    p = realloc(p, n * elem);
    if (!p) return false;
    memcpy(list, &p, sizeof p);
    *cap = n;
    return true;
}
