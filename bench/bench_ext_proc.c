/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the messages of Envoy's external processing cost: reading the headers of a request (16 of them) and bodies, writing a decision and
 * what stands before the pieces of a body. Processor time of one core, one after the other in warm caches.
 */
#include <string.h>
#include <time.h>

#include "wire/ext_proc.h"

enum { HEADERS = 16, ROUNDS = 5 };

static double cpu_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static void put_varint(struct kvr_buf *b, size_t v)
{
    for (; v > 127; v >>= 7) kvr_buf_add(b, &(char){(char)(v | 128)}, 1);
    kvr_buf_add(b, &(char){(char)v}, 1);
}

static void put_bytes(struct kvr_buf *b, char tag, const void *data, size_t len)
{
    kvr_buf_add(b, &tag, 1);
    put_varint(b, len);
    kvr_buf_add(b, data, len);
}

static struct kvr_buf headers(void)
{
    struct kvr_buf map = {0}, part = {0}, all = {0};
    for (int i = 0; i < HEADERS; i++) {
        struct kvr_buf one = {0}, value = {0};
        char name[32];
        put_bytes(&one, 0x0a, name, (size_t)snprintf(name, sizeof name, "x-header-of-a-client-%d", i));
        kvr_buf_printf(&value, "a value as long as they are on average, %d", i);
        put_bytes(&one, 0x1a, value.data, value.len);
        put_bytes(&map, 0x0a, one.data, one.len);
        kvr_buf_free(&one);
        kvr_buf_free(&value);
    }
    put_bytes(&part, 0x0a, map.data, map.len);
    put_bytes(&all, 0x12, part.data, part.len);
    kvr_buf_free(&map);
    kvr_buf_free(&part);
    return all;
}

static struct kvr_buf body(size_t len)
{
    struct kvr_buf part = {0}, all = {0};
    char *zeros = calloc(1, len);
    KVR_ASSERT(zeros);
    put_bytes(&part, 0x0a, zeros, len);
    put_bytes(&all, 0x22, part.data, part.len);
    kvr_buf_free(&part);
    free(zeros);
    return all;
}

static void read_it(const char *what, struct kvr_buf message, int times)
{
    struct kvr_ext_proc_message m;
    double best = 1e9;
    for (int round = 0; round < ROUNDS; round++) {
        double began = cpu_us();
        for (int i = 0; i < times; i++) {
            KVR_ASSERT(kvr_ext_proc_read((const uint8_t *)message.data, message.len, &m) == 0);
            kvr_ext_proc_free(&m);
        }
        best = KVR_MIN(best, (cpu_us() - began) / times);
    }
    printf("read   %-22s %7zu bytes %8.2f us\n", what, message.len, best);
    kvr_buf_free(&message);
}

static void decide(struct kvr_buf *out)
{
    static const struct kvr_ext_proc_text destination = {"10.0.0.1:8000", 13};
    static const struct kvr_ext_proc_header set[] = {{{"x-gateway-destination-endpoint", 30}, {"10.0.0.1:8000", 13}},
                                                     {{"x-kvroute-worker", 16}, {"12345678901234567890", 20}},
                                                     {{"x-kvroute-reason", 16}, {"cost", 4}},
                                                     {{"x-kvroute-overlap-blocks", 24}, {"17", 2}}};
    static const char *const removed[] = {"x-prefiller-host-port", "x-gateway-destination-endpoint-subset"};
    kvr_ext_proc_put_answer(out, KVR_EXT_PROC_REQUEST_HEADERS,
                            &(struct kvr_ext_proc_mutation){set, 4, removed, 2, .clear_route_cache = true, .destination = destination});
}

static void piece_of_token(struct kvr_buf *out)
{
    uint8_t head[KVR_EXT_PROC_PIECE_HEAD_MAX];
    kvr_buf_add(out, head, kvr_ext_proc_piece_head(head, KVR_EXT_PROC_RESPONSE_BODY, 200, false));
}

static void pieces_of_megabyte(struct kvr_buf *out)
{
    enum { WHOLE = 1 << 20 };
    uint8_t head[KVR_EXT_PROC_PIECE_HEAD_MAX];
    for (size_t at = 0; at < WHOLE; at += KVR_EXT_PROC_PIECE_MAX)
        kvr_buf_add(out, head,
                    kvr_ext_proc_piece_head(head, KVR_EXT_PROC_REQUEST_BODY, KVR_MIN((size_t)KVR_EXT_PROC_PIECE_MAX, WHOLE - at), false));
}

static void write_it(const char *what, void (*put)(struct kvr_buf *), int times)
{
    struct kvr_buf b = {0};
    double best = 1e9;
    for (int round = 0; round < ROUNDS; round++) {
        double began = cpu_us();
        for (int i = 0; i < times; i++) {
            kvr_buf_reset(&b);
            put(&b);
        }
        best = KVR_MIN(best, (cpu_us() - began) / times);
    }
    printf("write  %-22s %7zu bytes %8.2f us\n", what, b.len, best);
    kvr_buf_free(&b);
}

int main(void)
{
    read_it("16 headers", headers(), 20000);
    read_it("a body of 200 bytes", body(200), 20000);
    read_it("a body of 32 KiB", body(32 << 10), 5000);
    read_it("a body of 1 MiB", body(1 << 20), 200);
    write_it("a decision", decide, 20000);
    write_it("what is before a piece", piece_of_token, 20000);
    write_it("before those of 1 MiB", pieces_of_megabyte, 200);
    return 0;
}
