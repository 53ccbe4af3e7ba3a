/* SPDX-License-Identifier: Apache-2.0 */
/* What the process says of itself on a page of metrics, under Prometheus' standard names, and which program it is. */
#ifndef KVR_NET_PROCESS_METRICS_H
#define KVR_NET_PROCESS_METRICS_H

#include "wire/prom_page.h"

/* `program`: serve, indexer ... Any thread. What the system does not tell has no sample. */
void kvr_process_metrics(const char *program, struct kvr_prom_page *out);

#endif
