/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A gRPC server for tests/e2e/test_grpc.py: net/grpc without a program around it.
 *
 *   grpc_echo [NAME=VALUE...]    prints its port; the names are those of kvr_grpc_server_config, and tls=1
 *
 * What a call does is the end of its path:
 *   echo    each message comes back; OK when the client has closed its side
 *   once    the first message comes back, then OK
 *   keep    messages are kept (kvr_grpc_hold) until the client has closed its side; then their number of bytes, and OK
 *   status  the first message is a number and a text: the call's end
 *   open    ends before a message has come
 *   reset   ends without a status at the first message
 *   flood   the first message is a number of bytes, which are sent at once, in one message
 *   count   what there was: JSON
 * SIGTERM: drains, and ends when no connection is left. SIGUSR1: closes at once.
 */
#include <signal.h>
#include <string.h>

#include "net/grpc/grpc.h"

static struct kvr_grpc_shared shared;
static struct kvr_grpc_server *server;
static uint64_t opened, gone, half_closed;
static uv_signal_t on_term, on_usr;
static uv_timer_t until_empty;

struct call {
    const char *does;
    size_t kept;
};

static void on_open(struct kvr_grpc_stream *s, void *ctx)
{
    struct kvr_text path = kvr_grpc_path(s);
    const char *slash = memrchr(path.ptr, '/', path.len);
    struct call *call = calloc(1, sizeof *call);
    (void)ctx;
    KVR_ASSERT(call && slash && !kvr_grpc_user(s));
    call->does = slash + 1;
    kvr_grpc_set_user(s, call);
    opened++;
    if (strcmp(call->does, "open") == 0) kvr_grpc_finish(s, KVR_GRPC_UNIMPLEMENTED, "there is no such thing");
}

static void put_counts(struct kvr_grpc_stream *s)
{
    struct kvr_buf b = {0};
    struct kvr_grpc_server_stats stats;
    struct kvr_text said = kvr_headers_get(kvr_grpc_metadata(s), "x-said");
    kvr_grpc_server_stats(server, &stats);
    kvr_json_printf(&b, "{'opened':%ju,'gone':%ju,'half_closed':%ju,'connections':%zu,'streams':%zu,'held':%zu,'peer':%s,'said':%.*s",
                    (uintmax_t)opened, (uintmax_t)gone, (uintmax_t)half_closed, stats.connections, stats.streams, stats.held,
                    kvr_grpc_peer(s), (int)said.len, said.ptr ? said.ptr : "");
    const struct {
        const char *name;
        const _Atomic uint64_t *at;
    } rows[] = {{"total", &shared.streams_total},
                {"messages", &shared.messages},
                {"refused", &shared.refused},
                {"protocol_errors", &shared.protocol_errors},
                {"resets", &shared.resets},
                {"goaways", &shared.goaways},
                {"timeouts", &shared.timeouts},
                {"windows_closed", &shared.windows_closed},
                {"handshakes_failed", &shared.handshakes_failed},
                {"held_shared", &shared.held},
                {"connections_total", &shared.connections_total}};
    for (size_t i = 0; i < KVR_ARRAY_LEN(rows); i++) kvr_json_put_u64(&b, rows[i].name, atomic_load(rows[i].at));
    kvr_json_close(&b, '}');
    kvr_grpc_send(s, b.data, b.len);
    kvr_buf_free(&b);
}

static void on_message(struct kvr_grpc_stream *s, void *ctx, const uint8_t *data, size_t len)
{
    struct call *call = kvr_grpc_user(s);
    char text[64];
    (void)ctx;
    snprintf(text, sizeof text, "%.*s", (int)KVR_MIN(len, sizeof text - 1), (const char *)data);
    if (strcmp(call->does, "keep") == 0) {
        call->kept += len;
        kvr_grpc_hold(s, len);
    } else if (strcmp(call->does, "status") == 0) {
        char *why = NULL;
        unsigned long status = strtoul(text, &why, 10);
        kvr_grpc_finish(s, (enum kvr_grpc_status)status, *why ? why + 1 : NULL);
    } else if (strcmp(call->does, "reset") == 0) {
        kvr_grpc_reset(s);
    } else if (strcmp(call->does, "flood") == 0) {
        size_t n = strtoul(text, NULL, 10);
        char *zeros = calloc(1, n + 1);
        KVR_ASSERT(zeros);
        kvr_grpc_send(s, zeros, n);
        free(zeros);
    } else if (strcmp(call->does, "count") == 0) {
        put_counts(s);
    } else {
        kvr_grpc_send(s, data, len);
        if (strcmp(call->does, "once") == 0) kvr_grpc_finish(s, KVR_GRPC_OK, NULL);
    }
}

static void on_half_closed(struct kvr_grpc_stream *s, void *ctx)
{
    struct call *call = kvr_grpc_user(s);
    char text[32];
    (void)ctx;
    half_closed++;
    if (strcmp(call->does, "keep") == 0) {
        kvr_grpc_release(s, call->kept);
        kvr_grpc_send(s, text, (size_t)snprintf(text, sizeof text, "%zu", call->kept));
    }
    kvr_grpc_finish(s, KVR_GRPC_OK, NULL);
}

static void on_gone(struct kvr_grpc_stream *s, void *ctx)
{
    (void)ctx;
    gone++;
    free(kvr_grpc_user(s));
    kvr_grpc_set_user(s, NULL);
}

static void stop(void)
{
    uv_close((uv_handle_t *)&on_term, NULL);
    uv_close((uv_handle_t *)&on_usr, NULL);
    uv_close((uv_handle_t *)&until_empty, NULL);
    kvr_grpc_server_close(server);
    KVR_ASSERT(opened == gone);
}

static void look(uv_timer_t *t)
{
    struct kvr_grpc_server_stats stats;
    (void)t;
    kvr_grpc_server_stats(server, &stats);
    if (stats.connections == 0) stop();
}

static void on_signal(uv_signal_t *s, int n)
{
    (void)s;
    if (n == SIGUSR1) {
        stop();
        return;
    }
    kvr_grpc_server_drain(server);
    uv_timer_start(&until_empty, look, 1, 5);
}

static void set(struct kvr_grpc_server_config *c, const char *argument)
{
    const struct {
        const char *name;
        size_t *to;
    } sizes[] = {{"connections_max", &c->connections_max},
                 {"streams_max", &c->streams_max},
                 {"message_max", &c->message_max},
                 {"write_max", &c->write_max},
                 {"memory_max", &c->memory_max}};
    const struct {
        const char *name;
        double *to;
    } seconds[] = {{"handshake_timeout_s", &c->handshake_timeout_s},
                   {"write_timeout_s", &c->write_timeout_s},
                   {"connection_age_s", &c->connection_age_s}};
    const char *value = strchr(argument, '=');
    char err[256];
    KVR_ASSERT(value);
    size_t n = (size_t)(value++ - argument);
    for (size_t i = 0; i < KVR_ARRAY_LEN(sizes); i++)
        if (strlen(sizes[i].name) == n && memcmp(sizes[i].name, argument, n) == 0) *sizes[i].to = strtoul(value, NULL, 10);
    for (size_t i = 0; i < KVR_ARRAY_LEN(seconds); i++)
        if (strlen(seconds[i].name) == n && memcmp(seconds[i].name, argument, n) == 0) *seconds[i].to = strtod(value, NULL);
    if (n == 3 && memcmp(argument, "tls", n) == 0) {
        c->tls = kvr_tls_ctx_new(&(struct kvr_tls_files){.h2 = true}, err, sizeof err);
        KVR_ASSERT(c->tls);
    }
}

int main(int argc, char **argv)
{
    uv_loop_t *loop = uv_default_loop();
    struct kvr_grpc_server_config config = {.host = "127.0.0.1",
                                            .connections_max = 100,
                                            .streams_max = 100000,
                                            .message_max = 64 << 20,
                                            .write_max = 128 << 20,
                                            .handshake_timeout_s = 10,
                                            .write_timeout_s = 30,
                                            .shared = &shared,
                                            .handler = {on_open, on_message, on_half_closed, on_gone, NULL}};
    for (int i = 1; i < argc; i++) set(&config, argv[i]);
    if (kvr_grpc_server_start(loop, &config, &server)) return 1;
    uv_signal_init(loop, &on_term);
    uv_signal_init(loop, &on_usr);
    uv_timer_init(loop, &until_empty);
    uv_signal_start(&on_term, on_signal, SIGTERM);
    uv_signal_start(&on_usr, on_signal, SIGUSR1);
    signal(SIGPIPE, SIG_IGN);
    printf("%u\n", kvr_grpc_server_port(server));
    fflush(stdout);
    uv_run(loop, UV_RUN_DEFAULT);
    KVR_ASSERT(opened == gone && atomic_load(&shared.streams) == 0 && atomic_load(&shared.held) == 0 && uv_loop_close(loop) == 0);
    kvr_tls_ctx_free(config.tls);
    return 0;
}
