/* SPDX-License-Identifier: Apache-2.0 */
/* A policy file is refused with a text that names the file and a line, or every profile in it makes a queue that works. */
#include <string.h>

#include "base/base.h"
#include "app/serve/config/policy_file.h"

static bool always(void *, const struct kvr_queue_item *)
{
    return true;
}

static void use(const struct kvr_policy *p)
{
    static const char *const names[] = {"", "a", "default", "nobody"};
    struct kvr_queue *q;
    struct kvr_queue_item items[8];
    struct kvr_rejection r;
    size_t pushed = 0, popped = 0;
    KVR_ASSERT(kvr_queue_create(NULL, p, 0, &q) == 0);
    for (size_t i = 0; i < 8; i++) {
        items[i] = (struct kvr_queue_item){.isl = i * 1000, .cached = i * 100, .arrived_ns = i, .pinned = i % 3 == 0, .pin = {i, 0}};
        size_t at = kvr_queue_class(q, names[i % 4], strlen(names[i % 4]), i * 900);
        KVR_ASSERT(at < p->classes_n);
        int rc = kvr_queue_push(q, at, 3, &items[i], &r);
        KVR_ASSERT(rc == 0 || rc == -KVR_EQUEUEFULL);
        pushed += rc == 0;
    }
    while (kvr_queue_pop(q, 1000, always, NULL)) popped++;
    KVR_ASSERT(popped == pushed && kvr_queue_len(q) == 0);
    kvr_queue_destroy(q);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct policy_file f;
    char err[512] = "";
    if (size > 1 << 16) return 0;
    if (policy_file_read(&(struct kvr_yaml_source){"p.yaml", data, size, NULL}, &f, err, sizeof err)) {
        KVR_ASSERT(strncmp(err, "p.yaml:", 7) == 0 && strlen(err) > 10);
        return 0;
    }
    KVR_ASSERT(f.n > 0);
    for (size_t i = 0; i < f.n; i++) use(&f.profiles[i].policy);
    policy_file_free(&f);
    return 0;
}
