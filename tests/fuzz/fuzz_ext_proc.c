/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages of gRPC out of a stream that is seen in one piece and in many: the same messages. Each is read as one of Envoy's: what is read
 * has the limits that are said, lies where it may be touched, and is the same when it is read again.
 */
#include <string.h>

#include "net/grpc/messages.h"
#include "wire/ext_proc.h"

enum { MESSAGE_MAX = 1 << 16 };

static uint8_t seen; /* of all that was touched, so that it is */

static void touch(struct kvr_ext_proc_text t)
{
    KVR_ASSERT(t.ptr || t.len == 0);
    for (size_t i = 0; i < t.len; i++) seen ^= (uint8_t)t.ptr[i];
}

static void read_message(const uint8_t *data, size_t len)
{
    struct kvr_ext_proc_message m, again;
    char service[KVR_HEALTH_NAME_MAX + 1];
    if (kvr_health_read(data, len, service) == 0) KVR_ASSERT(strlen(service) <= KVR_HEALTH_NAME_MAX);
    int rc = kvr_ext_proc_read(data, len, &m);
    KVR_ASSERT(rc == 0 || rc == -KVR_EFORMAT || rc == -KVR_ELIMIT);
    if (rc) return;
    KVR_ASSERT(m.headers_n <= KVR_EXT_PROC_HEADERS_MAX && m.subset_n <= KVR_EXT_PROC_SUBSET_MAX && m.body.len <= len);
    KVR_ASSERT(m.has_subset || m.subset_n == 0);
    for (size_t i = 0; i < m.headers_n; i++) {
        touch(m.headers[i].name);
        touch(m.headers[i].value);
    }
    for (size_t i = 0; i < m.subset_n; i++) touch(m.subset[i]);
    touch(m.body);
    touch(m.served);
    touch(m.upstream_address);
    KVR_ASSERT(kvr_ext_proc_read(data, len, &again) == 0 && again.kind == m.kind && again.headers_n == m.headers_n);
    KVR_ASSERT(again.subset_n == m.subset_n && again.body.len == m.body.len && again.modes.request_body == m.modes.request_body);
    kvr_ext_proc_free(&again);
    kvr_ext_proc_free(&m);
}

/* What was read of a stream that comes in pieces of `step` bytes. */
struct result {
    size_t messages, bytes, unfinished;
    uint8_t sum;
    enum kvr__grpc_reading last;
};

static struct result read_stream(const uint8_t *data, size_t size, size_t step, bool reads)
{
    struct kvr__grpc_reader r = {0};
    struct kvr_buf spare = {0};
    struct kvr__grpc_piece message;
    struct result out = {.last = KVR__GRPC_MORE};
    for (size_t at = 0; at < size && out.last == KVR__GRPC_MORE; at += step) {
        struct kvr__grpc_piece piece = {data + at, KVR_MIN(step, size - at)};
        while ((out.last = kvr__grpc_next(&r, MESSAGE_MAX, &spare, &piece, &message)) == KVR__GRPC_MESSAGE) {
            KVR_ASSERT(message.len <= MESSAGE_MAX);
            for (size_t i = 0; i < message.len; i++) out.sum = (uint8_t)(out.sum * 31 + message.data[i]);
            out.messages++;
            out.bytes += message.len;
            if (reads) read_message(message.data, message.len);
        }
        KVR_ASSERT(out.last != KVR__GRPC_MORE || piece.len == 0);
    }
    if (out.last == KVR__GRPC_MORE) out.unfinished = kvr__grpc_unfinished(&r);
    kvr_buf_free(&r.part);
    kvr_buf_free(&spare);
    return out;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) return 0;
    size_t step = 1U + data[0] % 32;
    data++, size--;
    read_message(data, size);
    struct result whole = read_stream(data, size, SIZE_MAX / 2, true), split = read_stream(data, size, step, false);
    KVR_ASSERT(whole.messages == split.messages && whole.bytes == split.bytes && whole.sum == split.sum && whole.last == split.last);
    KVR_ASSERT(whole.unfinished == split.unfinished);
    if (whole.last == KVR__GRPC_MORE) KVR_ASSERT(whole.bytes + whole.messages * KVR__GRPC_PREFIX + whole.unfinished == size);
    return 0;
}
