/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Handshakes a second of one core, both sides in one thread and their bytes carried by hand: in full, as to a server that was not spoken
 * to before, and with a session that is resumed. P-256 certificates, TLS 1.3. Figures are of processor time.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "../tests/unit/tls_pairs.h"

enum { TIMES = 2000 };

static double cpu_s(void)
{
    return (double)clock() / CLOCKS_PER_SEC;
}

static void run(const char *what, struct kvr_tls_ctx *ctx, const struct kvr_tls_peer *peer, bool resumes)
{
    static uint16_t port;
    uint16_t first = ++port; /* each is another server */
    KVR_ASSERT(shake_hands(ctx, peer, first) == 0);
    double began = cpu_s();
    for (int i = 0; i < TIMES; i++) KVR_ASSERT(shake_hands(ctx, peer, resumes ? first : ++port) == resumes);
    double took = cpu_s() - began;
    printf("%-8s %6.0f handshakes/s, %4.0f us each\n", what, TIMES / took, took / TIMES * 1e6);
}

int main(void)
{
    char dir[] = "/tmp/kvr_bench_tls_XXXXXX", cert[64], key[64], err[256];
    if (!mkdtemp(dir)) return 1;
    snprintf(cert, sizeof cert, "%s/cert.pem", dir);
    snprintf(key, sizeof key, "%s/key.pem", dir);
    KVR_ASSERT(make_certificate(cert, key));
    struct kvr_tls_ctx *ctx = kvr_tls_ctx_new(&(struct kvr_tls_files){.cert = cert, .key = key}, err, sizeof err);
    const struct kvr_tls_peer *peer = kvr_tls_peer_get(&(struct kvr_tls_peer_config){.ca = cert}, err, sizeof err);
    KVR_ASSERT(ctx && peer);
    kvr_tls_peer_hold(peer);
    for (int i = 0; i < 3; i++) {
        run("in full", ctx, peer, false);
        run("resumed", ctx, peer, true);
    }
    kvr_tls_peer_let_go(peer);
    kvr_tls_ctx_free(ctx);
    (void)unlink(cert);
    (void)unlink(key);
    rmdir(dir);
    return 0;
}
