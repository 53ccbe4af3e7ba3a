/* SPDX-License-Identifier: Apache-2.0 */
/* traceparent and tracestate: what is accepted comes out the same when it is written and read again. */
#include <string.h>

#include "base/base.h"
#include "wire/trace_context.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct kvr_trace_context c, again;
    char text[KVR_TRACEPARENT_LEN + 1];
    if (kvr_traceparent_read((const char *)data, size, &c)) {
        kvr_traceparent_write(&c, text);
        KVR_ASSERT(strlen(text) == KVR_TRACEPARENT_LEN && memcmp(text + 2, data + 2, KVR_TRACEPARENT_LEN - 2) == 0);
        KVR_ASSERT(kvr_traceparent_read(text, KVR_TRACEPARENT_LEN, &again) && memcmp(again.trace, c.trace, 16) == 0);
        KVR_ASSERT(c.parent && again.parent == c.parent && again.flags == c.flags);
    }
    int n = kvr_tracestate_members((const char *)data, size);
    KVR_ASSERT(n >= -1 && (size_t)(n + 1) <= size / 4 + 2); /* "a=1," is the shortest */
    return 0;
}
