/* SPDX-License-Identifier: Apache-2.0 */
/* Whatever an API server says: what is taken of it is fit for paths, URLs and entries of workers, and what is ready has not ended. */
#include <arpa/inet.h>
#include <string.h>

#include "wire/kube.h"

static bool is_plain(const char *text)
{
    return strcspn(text, ",={}/ \"\\\r\n") == strlen(text);
}

static void check_ports(const struct kvr_kube_ports *p)
{
    KVR_ASSERT(p->n <= KVR_KUBE_PORTS_MAX);
    for (size_t i = 0; i < p->n; i++) {
        KVR_ASSERT(p->list[i] > 0);
        for (size_t j = 0; j < i; j++) KVR_ASSERT(p->list[i] != p->list[j]);
    }
}

static bool is_address(const char *text)
{
    unsigned char bytes[16];
    return inet_pton(strchr(text, ':') ? AF_INET6 : AF_INET, text, bytes) == 1;
}

static void take_object(struct kvr_json o)
{
    static struct kvr_kube_slice slice;
    struct kvr_kube_pod pod;
    struct kvr_kube_pool pool;
    bool whole = kvr_kube_pod_read(o, &pod) == NULL;
    KVR_ASSERT(!whole || (kvr_kube_name_ok(pod.name) && pod.uid[0]));
    KVR_ASSERT(is_plain(pod.uid) && is_plain(pod.role) && (!pod.address[0] || is_address(pod.address)));
    KVR_ASSERT(!pod.over || !pod.ready);
    check_ports(&pod.active);
    if (!kvr_kube_pool_read(o, &pool)) {
        KVR_ASSERT(kvr_kube_selector_ok(pool.selector) && pool.ports.n > 0);
        check_ports(&pool.ports);
    }
    if (kvr_kube_slice_read(o, &slice)) return;
    KVR_ASSERT(slice.n <= KVR_KUBE_SLICE_MAX && kvr_kube_name_ok(slice.name));
    for (size_t i = 0; i < slice.n; i++)
        KVR_ASSERT(is_address(slice.addresses[i]) && slice.v6 == (strchr(slice.addresses[i], ':') != NULL));
}

/* What was encoded has no character that a head or a query ends with. */
static void encode(const char *text)
{
    struct kvr_buf b = {0};
    kvr_kube_put_query(&b, text);
    kvr_buf_add(&b, "", 1);
    KVR_ASSERT(b.failed || strcspn(b.data, " &?#\r\n=,/") == b.len - 1);
    kvr_buf_free(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct kvr_json_parser *parser;
    struct kvr_kube_event e;
    struct kvr_kube_page page;
    struct kvr_kube_status s;
    struct kvr_kube_ports ports;
    struct kvr_json root;
    if (!parser) parser = kvr_json_parser_new();
    if (kvr_kube_ports_parse((const char *)data, size, &ports)) check_ports(&ports);
    if (kvr_json_parse(parser, (const char *)data, size, &root, NULL)) return 0;
    kvr_kube_status_read(root, &s);
    take_object(root);
    if (kvr_kube_event_read(root, &e)) {
        KVR_ASSERT(e.kind == KVR_KUBE_ERROR || e.version[0]);
        take_object(e.object);
        encode(e.version);
    }
    if (kvr_kube_page_read(root, &page)) {
        KVR_ASSERT(page.version[0]);
        for (struct kvr_json_iter i = kvr_json_iter(page.items); kvr_json_next(&i);) take_object(i.value);
        encode(page.more);
    }
    return 0;
}
