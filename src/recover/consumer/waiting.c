/* SPDX-License-Identifier: Apache-2.0 */
#include "recover/consumer/waiting.h"

#include <stdlib.h>
#include <string.h>

static void put_last(struct kvr_waiting *w, struct kvr_waiting_batch *b)
{
    if (w->tail) w->tail->next = b;
    else w->head = b;
    w->tail = b;
    w->n++;
    w->bytes += b->len;
}

bool kvr__waiting_put(struct kvr_waiting *w, uint64_t seq, bool seen, const char *data, size_t len)
{
    if (w->n >= KVR_WAITING_MESSAGES_MAX || w->bytes + len > KVR_WAITING_BYTES_MAX) return false;
    struct kvr_waiting_batch *b = malloc(sizeof *b + len);
    if (!b) return false;
    *b = (struct kvr_waiting_batch){.seq = seq, .seen = seen, .len = len};
    if (len) memcpy(b->data, data, len);
    put_last(w, b);
    return true;
}

struct kvr_waiting_batch *kvr__waiting_take(struct kvr_waiting *w)
{
    struct kvr_waiting_batch *b = w->head;
    if (!b) return NULL;
    w->head = b->next;
    if (!w->head) w->tail = NULL;
    w->n--;
    w->bytes -= b->len;
    return b;
}

void kvr__waiting_append(struct kvr_waiting *w, struct kvr_waiting *others)
{
    if (!others->head) return;
    if (w->tail) w->tail->next = others->head;
    else w->head = others->head;
    w->tail = others->tail;
    w->n += others->n;
    w->bytes += others->bytes;
    *others = (struct kvr_waiting){0};
}

void kvr__waiting_clear(struct kvr_waiting *w)
{
    struct kvr_waiting_batch *b;
    while ((b = kvr__waiting_take(w))) free(b);
}
