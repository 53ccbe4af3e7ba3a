/* SPDX-License-Identifier: Apache-2.0 */
/* base/nearest.h says what this is. */
#include "base/nearest.h"

#include <string.h>

#include "base/base.h"

enum {
    NAME_MAX_LEN = 80, /* longer ones are not compared */
    PART_MIN = 4,      /* shorter texts are part of too much */
    A_PART = 1000      /* is farther than all changes that count */
};

/* Optimal string alignment: the changes that make a of b, no part of it changed twice. */
static size_t changes(const char *a, size_t a_len, const char *b, size_t b_len)
{
    size_t rows[3][NAME_MAX_LEN + 1], *before = rows[0], *last = rows[1], *now = rows[2];
    for (size_t j = 0; j <= b_len; j++) last[j] = before[j] = j;
    for (size_t i = 1; i <= a_len; i++) {
        now[0] = i;
        for (size_t j = 1; j <= b_len; j++) {
            now[j] = KVR_MIN(last[j - 1] + (a[i - 1] != b[j - 1]), KVR_MIN(last[j], now[j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) now[j] = KVR_MIN(now[j], before[j - 2] + 1);
        }
        size_t *free_row = before;
        before = last;
        last = now;
        now = free_row;
    }
    return last[b_len];
}

void kvr_nearest_offer(struct kvr_nearest *n, const char *name)
{
    size_t wanted = strlen(n->wanted), len = strlen(name);
    if (wanted > NAME_MAX_LEN || len > NAME_MAX_LEN) return;
    size_t distance = changes(n->wanted, wanted, name, len);
    if (distance > KVR_MAX(wanted / 3, 1)) {
        if (wanted < PART_MIN || !strstr(name, n->wanted)) return;
        distance = A_PART + len;
    }
    if (n->best && n->distance <= distance) return;
    n->best = name;
    n->distance = distance;
}
