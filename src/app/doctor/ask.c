/* SPDX-License-Identifier: Apache-2.0 */
/* Questions over HTTP, one at a time, to targets of the command line and to the engines that they list; with which key. */
#include "app/doctor/state.h"

void fetch(struct doctor *d, const char *url, const char *body, const char *headers, const char *key, struct kvr_fetched *out)
{
    struct kvr_fetch f = {&d->loop, d->http, url, body, headers, key, d->o->timeout};
    kvr_http_fetch(&f, out);
}

bool fetched_json(struct doctor *d, const struct kvr_fetched *f, struct kvr_json *out)
{
    return f->status == 200 && f->body.len && kvr_json_parse(d->json, f->body.data, f->body.len, out, NULL) == 0;
}

const char *engine_key(const struct doctor *d, const struct engine_target *t)
{
    return t->router[0] ? d->o->engine_key : d->key;
}
