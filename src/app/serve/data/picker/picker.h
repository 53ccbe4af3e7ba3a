/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The endpoint picker: the port on which a gateway (Envoy) asks which worker a request goes to, by external processing, and carries it
 * there itself (spec: Envoy's ext_proc v3 and the Endpoint Picker Protocol 1.0 of the Gateway API Inference Extension). Each data loop has
 * one.
 *
 *     gateway --gRPC--> picker.c --> pick.c: the request, as if it had come by the data port
 *                          |             \--> request/: the same phases --> carrier.h: the decision --> the gateway
 *                          |------> observer.c: responses that a second stream tells of (observed.h)
 *                          '------> health.c
 *
 * Threads: the loop's, but picker_metrics.
 */
#ifndef KVR_SERVE_PICKER_H
#define KVR_SERVE_PICKER_H

#include "app/serve/data/state/loop.h"
#include "net/grpc/grpc.h"

struct data_port_named;
struct kvr_prom_page;
struct mail;
struct observed_table;
struct pick;
struct watch;

/* Of observers on other loops (observed.h); under the loop's mail_lock. */
struct picker_mail {
    struct mail *first, *last;
    size_t bytes;
};

struct picker {
    struct loop *loop;
    struct kvr_grpc_server *server, *health; /* health: the plain port; NULL: none */
    struct pick *picks;                      /* of all, those whose end nobody will tell too */
    size_t picks_n;
    struct observed_table *observed; /* the first loop's picker made it, for all */
    struct picker_mail mail;
    struct watch *watches;
    bool told_of_name; /* a worker's address was one: said once */
    uv_timer_t look;   /* whether what is watched has changed */
};

/* Opens the ports of --ext-proc-port. `port`: of the loops before, which this one joins; 0: it is the first. Returns: 0 or UV_E..., with
 * the port that it is about. */
int picker_open(struct loop *l, uint16_t port, struct data_port_named *opens);
uint16_t picker_port(const struct picker *p);
void picker_take_mail(struct picker *p);
/* No new calls; those that run go on. */
void picker_drain(struct picker *p);
size_t picker_open_calls(const struct picker *p); /* that ask for a worker, or tell what becomes of the choice */
/* Everything ends; memory goes with the loop's close callbacks. NULL is fine. */
void picker_close(struct loop *l);
void picker_metrics(struct data_plane *data, struct kvr_prom_page *out); /* any thread */

#endif
