/* SPDX-License-Identifier: Apache-2.0 */
/* Built without nghttp2 (KVR_EXT_PROC=OFF): the option is refused (kvr_grpc_available), so no loop ever has a picker. */
#include "app/serve/data/picker/picker.h"

int picker_open(struct loop *, uint16_t, struct data_port_named *)
{
    return UV_ENOTSUP;
}

uint16_t picker_port(const struct picker *p)
{
    KVR_ASSERT(!p);
    return 0;
}

void picker_take_mail(struct picker *p)
{
    KVR_ASSERT(!p);
}

void picker_drain(struct picker *p)
{
    KVR_ASSERT(!p);
}

size_t picker_open_calls(const struct picker *p)
{
    KVR_ASSERT(!p);
    return 0;
}

void picker_close(struct loop *l)
{
    KVR_ASSERT(!l->picker);
}

void picker_metrics(struct data_plane *, struct kvr_prom_page *) {}
