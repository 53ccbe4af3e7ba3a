/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of large bodies, kept for the next one. Given back to the system it would be taken again at once, page by page, each page zeroed:
 * for a body of 200 KB that costs more than to receive it.
 *
 * Each thread that receives bodies has its own: taken and kept there without a lock. A body whose last reference goes elsewhere is freed.
 * Bounded in bytes; what is not used for some seconds is given back.
 */
#include "net/http/internal.h"

#include <string.h>

enum { SPARES_MAX = 32, AGE_MAX = 5 /* sweeps */ };

struct spare {
    char *data;
    size_t cap;
    struct kvr_http_shared *shared; /* where it is counted */
    unsigned age;
};

static _Thread_local struct {
    struct spare list[SPARES_MAX]; /* the one that was used last comes last */
    size_t n, bytes, bytes_max;
} spares;

static void take_out(size_t i)
{
    spares.bytes -= spares.list[i].cap;
    atomic_fetch_sub(&spares.list[i].shared->bodies_spare, spares.list[i].cap);
    memmove(&spares.list[i], &spares.list[i + 1], (--spares.n - i) * sizeof spares.list[0]);
}

static void give_back(size_t i)
{
    char *data = spares.list[i].data;
    take_out(i);
    free(data);
}

void kvr_http_spares_keep(size_t bytes_max)
{
    spares.bytes_max = bytes_max;
    while (spares.bytes > bytes_max) give_back(0);
}

char *kvr__spare_take(size_t least, size_t most, size_t *cap)
{
    for (size_t i = spares.n; i-- > 0;) {
        struct spare s = spares.list[i];
        if (s.cap < least || s.cap > most) continue;
        take_out(i);
        *cap = s.cap;
        return s.data;
    }
    return NULL;
}

void kvr__spare_or_free(struct kvr_http_shared *shared, char *data, size_t cap)
{
    if (cap < KVR__SPARE_MIN || cap > spares.bytes_max / 4) {
        free(data);
        return;
    }
    while (spares.n == SPARES_MAX || spares.bytes + cap > spares.bytes_max) give_back(0);
    spares.list[spares.n++] = (struct spare){.data = data, .cap = cap, .shared = shared};
    spares.bytes += cap;
    atomic_fetch_add(&shared->bodies_spare, cap);
}

void kvr__spares_age(void)
{
    for (size_t i = spares.n; i-- > 0;)
        if (++spares.list[i].age > AGE_MAX) give_back(i);
}
