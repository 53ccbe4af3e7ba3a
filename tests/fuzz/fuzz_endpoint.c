/* SPDX-License-Identifier: Apache-2.0 */
/* URLs and event endpoints: what is accepted is usable. */
#include <string.h>

#include "net/http/http.h"
#include "net/ingest/ingest.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct kvr_endpoint e;
    char text[300], shifted[300];
    if (kvr_endpoint_parse((const char *)data, size, &e) == 0) {
        KVR_ASSERT(e.port > 0 && e.host[0] && strlen(e.host) < sizeof e.host);
        KVR_ASSERT(!strpbrk(e.host, " \r\n\t") && !strpbrk(e.base, " \r\n\t"));
    }
    if (size >= sizeof text) return 0;
    memcpy(text, data, size);
    text[size] = 0;
    if (kvr_ingest_endpoint_ok(text) && kvr_ingest_endpoint_shift(text, 1, shifted, sizeof shifted))
        KVR_ASSERT(kvr_ingest_endpoint_ok(shifted));
    return 0;
}
