/* SPDX-License-Identifier: Apache-2.0 */
/* The line of kvr_ttft_predict, for those who ask it of every worker. */
#ifndef KVR_SELECT_TTFT_LINE_H
#define KVR_SELECT_TTFT_LINE_H

#include <kvroute/ttft_model.h>

static inline double kvr__ttft_line(const struct kvr_ttft_model *m, double own, double ahead, double requests)
{
    return m->base_ms + m->token_ms * own + m->ahead_ms * ahead + m->request_ms * requests;
}

#endif
