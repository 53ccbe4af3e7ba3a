/* SPDX-License-Identifier: Apache-2.0 */
/* A file of API keys is refused with a text that names the file, or all of it is sound: names and keys differ, and limits can be used. */
#include <string.h>

#include "app/serve/config/api_keys.h"
#include "base/base.h"
#include "base/bucket.h"

static void check_limits(const struct key_limits *l)
{
    struct kvr_bucket b = {0};
    KVR_ASSERT((l->requests_per_second > 0) == (l->burst_requests > 0) && (l->tokens_per_second > 0) == (l->burst_tokens > 0));
    KVR_ASSERT(kvr_bucket_take(&b, (struct kvr_bucket_rate){l->requests_per_second, l->burst_requests}, 0, 1) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct api_keys k;
    char err[512] = "";
    if (size > 1 << 14) return 0;
    if (api_keys_read(&(struct kvr_yaml_source){"k.yaml", data, size, NULL}, &k, err, sizeof err)) {
        KVR_ASSERT(strncmp(err, "k.yaml:", 7) == 0 && strlen(err) > 10 && !k.keys && !k.models);
        return 0;
    }
    KVR_ASSERT(k.n || k.has_anonymous);
    for (size_t i = 0; i < k.n; i++) {
        const struct api_key *a = &k.keys[i];
        KVR_ASSERT(a->name[0] && a->weight > 0 && (!a->models || a->models_n));
        check_limits(&a->limits);
        for (size_t j = 0; j < i && i < 64; j++)
            KVR_ASSERT(strcmp(a->name, k.keys[j].name) != 0 && !kvr_digest_same(a->digest, k.keys[j].digest));
    }
    for (size_t i = 0; i < k.models_n; i++) check_limits(&k.models[i].limits);
    check_limits(&k.anonymous.limits);
    api_keys_free(&k);
    return 0;
}
