/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions that are resumed, and those that must not be; what is kept for workers that have gone. */
#include "test.h"

#include <stdio.h>
#include <unistd.h>

#include "tls_pairs.h"

enum { PORT = 8443 };

struct rig {
    char dir[64], cert[96], key[96], other_cert[96], other_key[96];
    struct kvr_tls_ctx *ctx, *other;
};

static struct kvr_tls_ctx *server(const char *cert, const char *key)
{
    char err[256];
    struct kvr_tls_ctx *ctx = kvr_tls_ctx_new(&(struct kvr_tls_files){.cert = cert, .key = key}, err, sizeof err);
    if (!ctx) fail_msg("%s", err);
    return ctx;
}

static void open_rig(struct rig *r)
{
    snprintf(r->dir, sizeof r->dir, "/tmp/kvr_tls_XXXXXX");
    assert_non_null(mkdtemp(r->dir));
    snprintf(r->cert, sizeof r->cert, "%s/a.pem", r->dir);
    snprintf(r->key, sizeof r->key, "%s/a.key", r->dir);
    snprintf(r->other_cert, sizeof r->other_cert, "%s/b.pem", r->dir);
    snprintf(r->other_key, sizeof r->other_key, "%s/b.key", r->dir);
    assert_true(make_certificate(r->cert, r->key) && make_certificate(r->other_cert, r->other_key));
    r->ctx = server(r->cert, r->key);
    r->other = server(r->other_cert, r->other_key);
}

static void close_rig(struct rig *r)
{
    const char *const files[] = {r->cert, r->key, r->other_cert, r->other_key};
    for (size_t i = 0; i < KVR_ARRAY_LEN(files); i++) (void)unlink(files[i]);
    rmdir(r->dir);
    kvr_tls_ctx_free(r->ctx);
    kvr_tls_ctx_free(r->other);
}

static const struct kvr_tls_peer *get(const struct kvr_tls_peer_config *c)
{
    char err[256];
    const struct kvr_tls_peer *p = kvr_tls_peer_get(c, err, sizeof err);
    if (!p) fail_msg("%s", err);
    kvr_tls_peer_hold(p);
    return p;
}

static void count_file(void *n, const char *)
{
    ++*(size_t *)n;
}

static size_t files(void)
{
    size_t n = 0;
    kvr_tls_peers_files(count_file, &n);
    return n;
}

static void a_worker_was_shaken_hands_with_in_full_each_time(void **)
{
    struct rig r;
    open_rig(&r);
    const struct kvr_tls_peer *p = get(&(struct kvr_tls_peer_config){.ca = r.cert});
    assert_int_equal(shake_hands(r.ctx, p, PORT), 0);
    for (int i = 0; i < 5; i++) assert_int_equal(shake_hands(r.ctx, p, PORT), 1);
    kvr_tls_peer_let_go(p);
    close_rig(&r);
}

static void no_session_is_resumed_with_other_credentials_names_or_servers(void **)
{
    struct rig r;
    open_rig(&r);
    const struct kvr_tls_peer_config configs[] = {
        {.ca = r.cert}, {.ca = r.cert, .cert = r.other_cert, .key = r.other_key}, {.ca = r.cert, .insecure = true}};
    const struct kvr_tls_peer *p[3];
    for (int i = 0; i < 3; i++) {
        p[i] = get(&configs[i]);
        assert_int_equal(shake_hands(r.ctx, p[i], PORT), 0);
    }
    for (int i = 0; i < 3; i++) assert_int_equal(shake_hands(r.ctx, p[i], PORT), 1);
    assert_int_equal(shake_hands(r.ctx, p[0], PORT + 1), 0); /* another server */
    assert_int_equal(shake_hands(r.other, p[0], PORT), -1);  /* which is not believed, whatever was before */
    assert_int_equal(shake_hands(r.ctx, p[0], PORT), 1);     /* the right one again */
    const struct kvr_tls_peer *named = get(&(struct kvr_tls_peer_config){.ca = r.cert, .server_name = "elsewhere"});
    assert_int_equal(shake_hands(r.ctx, named, PORT), -1);
    kvr_tls_peer_let_go(named);
    for (int i = 0; i < 3; i++) kvr_tls_peer_let_go(p[i]);
    close_rig(&r);
}

static void no_session_of_before_is_resumed_when_files_were_read_again(void **)
{
    struct rig r;
    char err[256];
    open_rig(&r);
    const struct kvr_tls_peer *p = get(&(struct kvr_tls_peer_config){.ca = r.cert});
    assert_int_equal(shake_hands(r.ctx, p, PORT), 0);
    assert_int_equal(shake_hands(r.ctx, p, PORT), 1);
    assert_int_equal(kvr_tls_peers_reload(err, sizeof err), 0);
    assert_int_equal(shake_hands(r.ctx, p, PORT), 0);
    assert_int_equal(kvr_tls_trust(&(struct kvr_tls_peer_config){.ca = r.cert}, err, sizeof err), 0);
    assert_int_equal(shake_hands(r.ctx, NULL, PORT), 0);
    assert_int_equal(shake_hands(r.ctx, NULL, PORT), 1);
    assert_int_equal(kvr_tls_trust(&(struct kvr_tls_peer_config){.ca = r.other_cert}, err, sizeof err), 0);
    assert_int_equal(shake_hands(r.ctx, NULL, PORT), -1); /* it is not believed any more */
    kvr_tls_peer_let_go(p);
    close_rig(&r);
}

static void files_of_workers_that_have_gone_were_kept(void **)
{
    struct rig r;
    char err[256], name[32];
    open_rig(&r);
    struct kvr_tls_peer_config c = {.ca = r.cert, .server_name = name};
    for (int i = 0; i < KVR_TLS_PEERS_MAX + 10; i++) { /* one after the other */
        snprintf(name, sizeof name, "worker-%d", i);
        const struct kvr_tls_peer *p = get(&c);
        assert_int_equal(files(), 1);
        if (i % 2) kvr_tls_peer_hold(p);
        kvr_tls_peer_let_go(p);
        assert_int_equal(files(), i % 2);
        if (i % 2) kvr_tls_peer_let_go(p);
    }
    for (int i = 0; i < KVR_TLS_PEERS_MAX + 10; i++) { /* of entries that were refused, so that nobody holds them */
        snprintf(name, sizeof name, "refused-%d", i);
        assert_non_null(kvr_tls_peer_get(&c, err, sizeof err));
    }
    const struct kvr_tls_peer_config plain = {.ca = r.cert};
    const struct kvr_tls_peer *p = get(&plain), *before = p;
    assert_int_equal(shake_hands(r.ctx, p, PORT), 0);
    kvr_tls_peer_let_go(p);
    assert_int_equal(shake_hands(r.ctx, before, PORT), -1); /* nobody is connected to with what is gone */
    assert_ptr_equal(get(&plain), before);
    assert_int_equal(shake_hands(r.ctx, before, PORT), 0);                                                 /* nor is its session there */
    assert_non_null(kvr_tls_peer_get(&(struct kvr_tls_peer_config){.ca = r.other_cert}, err, sizeof err)); /* which nobody holds */
    assert_int_equal(files(), 2);
    kvr_tls_peer_let_go(get(&(struct kvr_tls_peer_config){.ca = r.cert, .insecure = true}));
    assert_int_equal(files(), 1);
    (void)unlink(r.other_cert); /* it is not read any more */
    assert_int_equal(kvr_tls_peers_reload(err, sizeof err), 0);
    kvr_tls_peer_let_go(before);
    assert_int_equal(files(), 0);
    close_rig(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_worker_was_shaken_hands_with_in_full_each_time),
        cmocka_unit_test(no_session_is_resumed_with_other_credentials_names_or_servers),
        cmocka_unit_test(no_session_of_before_is_resumed_when_files_were_read_again),
        cmocka_unit_test(files_of_workers_that_have_gone_were_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
