/* SPDX-License-Identifier: Apache-2.0 */
/* Reads block_mm_infos; wire/mm_infos.h has the form. */
#include "wire/mm_infos.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <kvroute/error.h>

struct reading {
    struct kvr_mm_infos *out; /* NULL: only counting */
    size_t block, objects;    /* so far */
    char *why;
    size_t cap;
};

static int wrong(struct reading *r, const char *what)
{
    snprintf(r->why, r->cap, "block_mm_infos: entry %zu: %s", r->block, what);
    return -KVR_EFORMAT;
}

static int read_object(struct reading *r, struct kvr_json v)
{
    struct kvr_json offsets = kvr_json_get(v, "offsets");
    uint64_t hash = 0;
    if (!kvr_json_as_u64(kvr_json_get(v, "mm_hash"), &hash)) return wrong(r, "`mm_hash` must be a whole number from 0 to 2^64 - 1");
    if (kvr_json_is_given(offsets) && kvr_json_type_of(offsets) != KVR_JSON_ARRAY) return wrong(r, "`offsets` must be a list");
    if (r->out) r->out->hashes[r->objects] = hash;
    r->objects++;
    return 0;
}

static int read_block(struct reading *r, struct kvr_json v)
{
    size_t before = r->objects;
    if (kvr_json_type_of(v) != KVR_JSON_NULL) {
        struct kvr_json objects = kvr_json_get(v, "mm_objects");
        if (kvr_json_type_of(v) != KVR_JSON_OBJECT || kvr_json_type_of(objects) != KVR_JSON_ARRAY)
            return wrong(r, "allowed: null or an object with the list `mm_objects`");
        for (struct kvr_json_iter i = kvr_json_iter(objects); kvr_json_next(&i);)
            if (read_object(r, i.value)) return -KVR_EFORMAT;
        if (r->objects - before > KVR_MM_OBJECTS_MAX) return wrong(r, "more than 64 objects in one block");
    }
    if (r->out) r->out->blocks[r->block] = (struct kvr_mm_block){r->out->hashes + before, r->objects - before};
    r->block++;
    return 0;
}

static int read_blocks(struct reading *r, struct kvr_json list)
{
    for (struct kvr_json_iter i = kvr_json_iter(list); kvr_json_next(&i);)
        if (read_block(r, i.value)) return -KVR_EFORMAT;
    return 0;
}

int kvr_mm_infos_read(struct kvr_json body, size_t blocks_max, struct kvr_mm_infos *out, char *why, size_t cap)
{
    struct kvr_json list = kvr_json_get(body, "block_mm_infos");
    struct reading r = {.why = why, .cap = cap};
    memset(out, 0, sizeof *out);
    if (!kvr_json_is_given(list)) return 0;
    const char *what = kvr_json_type_of(list) != KVR_JSON_ARRAY ? "must be a list with an entry per block"
                       : !blocks_max                            ? "goes with tokens only; block hashes must already include the objects"
                       : kvr_json_count(list) > blocks_max      ? "has more entries than the prompt has blocks"
                                                                : NULL;
    if (what) {
        snprintf(why, cap, "block_mm_infos %s", what);
        return -KVR_EFORMAT;
    }
    int rc = read_blocks(&r, list);
    if (rc || r.objects == 0) return rc;
    out->n = r.block;
    out->blocks = malloc(r.block * sizeof *out->blocks);
    out->hashes = malloc(r.objects * sizeof *out->hashes);
    if (!out->blocks || !out->hashes) return -KVR_ENOMEM;
    r = (struct reading){.out = out, .why = why, .cap = cap};
    return read_blocks(&r, list);
}

void kvr_mm_infos_free(struct kvr_mm_infos *m)
{
    free(m->blocks);
    free(m->hashes);
    memset(m, 0, sizeof *m);
}
