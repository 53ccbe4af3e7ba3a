/* SPDX-License-Identifier: Apache-2.0 */
/*
 * --api-key-file: who may use the data port, and how much. YAML; docs/guides/keys.md shows the format. The file is read as a whole and
 * refused as a whole. Of a key its SHA-256 is kept, never the key.
 */
#ifndef KVR_SERVE_API_KEYS_H
#define KVR_SERVE_API_KEYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvroute/queue.h>

#include "app/serve/common/limits.h"
#include "net/http/digest.h"
#include "wire/yaml_map.h"

enum { KEYS_MAX = 16384, KEY_MODELS_MAX = 256, LIMITED_MODELS_MAX = 256, KEY_NAME_MAX = 64, KEY_SECRET_MIN = 8, KEY_SECRET_MAX = 255 };

struct key_use;

/* Of the workers that its requests may go to. */
struct key_taints {
    const char *names[KEY_TAINTS_MAX]; /* each in text */
    size_t n;
    char text[KEY_TAINTS_MAX][64];
};

/* A limit that is one number is a row: its name everywhere, how api_keys.c reads it, and whether a model may have it too. */
#define KEY_MAXIMA(X)                                                                                                                      \
    X(max_concurrent, read_count, true)                                                                                                    \
    X(max_body_size, read_size, false)                                                                                                     \
    X(max_prompt_tokens, read_count, false)

/* 0: no limit. Where there is a rate there is a burst. */
struct key_limits {
    double requests_per_second, burst_requests, tokens_per_second, burst_tokens;
#define KEY_MAXIMUM_FIELD(name, read, of_models) uint64_t name;
    KEY_MAXIMA(KEY_MAXIMUM_FIELD)
#undef KEY_MAXIMUM_FIELD
};

struct api_key {
    char name[KEY_NAME_MAX];
    unsigned char digest[KVR_DIGEST]; /* none of `anonymous` */
    struct key_limits limits;
    char (*models)[MODEL_MAX]; /* it may use these, of which one that ends with * stands for all that begin so; NULL: all */
    size_t models_n;
    struct key_taints *required_taints;    /* NULL: any worker */
    char policy_class[KVR_CLASS_NAME_MAX]; /* its queue class or family; "": what the request says */
    double weight;                         /* its share in the queue */
    double priority_max;                   /* negative: not limited */
    int64_t expires;                       /* seconds since 1970; INT64_MAX: never */
    size_t line;                           /* of the file */
    struct key_use *use;                   /* the keyring's */
};

struct limited_model {
    char model[MODEL_MAX];
    struct key_limits limits;
    struct key_use *use; /* the keyring's */
};

struct api_keys {
    struct api_key *keys;
    size_t n, cap;
    struct limited_model *models;
    size_t models_n;
    struct key_limits otherwise; /* `default`: of a key, what it does not say itself */
    bool has_anonymous;
    struct api_key anonymous; /* requests without a key */
};

/* Returns: 0; -1 with file, line, key and what is allowed in err. */
int api_keys_read(const struct kvr_yaml_source *from, struct api_keys *out, char *err, size_t cap);
void api_keys_free(struct api_keys *k);

bool api_key_allows(const struct api_key *k, const char *model);

#endif
