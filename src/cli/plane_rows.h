/* SPDX-License-Identifier: Apache-2.0 */
/* Option rows of a struct kvr_plane_options (of the program's options header) that stands at `at` in the options. */
#ifndef KVR_CLI_PLANE_ROWS_H
#define KVR_CLI_PLANE_ROWS_H

#include "cli/options.h"

#define PLANE_AT(at, field) (at) + offsetof(struct kvr_plane_options, field)
#define PLANE_ROWS(at)                                                                                                                     \
    GROUP("plane", "Event plane: ZMQ, NATS, JetStream"), MORE,                                                                             \
        ROW("event-plane", OPT_ENUM, PLANE_AT(at, plane), "zmq", 0, 0, "zmq|nats|jetstream",                                               \
            "what carries KV events: publishers' own sockets, NATS, or JetStream, which keeps them", "DYN_EVENT_PLANE"),                   \
        ROW("namespace", OPT_STRING, PLANE_AT(at, name_space), "default", 0, 0, "NAME",                                                    \
            "with --component the scope of NATS subjects: namespace.NAME.component.NAME", "DYN_NAMESPACE"),                                \
        ROW("component", OPT_STRING, PLANE_AT(at, component), "backend", 0, 0, "NAME", "the workers' component in that scope"),            \
        ROW("nats-url", OPT_WORDS, PLANE_AT(at, nats_url), "nats://127.0.0.1:4222", 0, 0, "URL[,URL...]",                                  \
            "NATS servers, nats:// or tls://, with user:password@ if need be", "NATS_SERVER"),                                             \
        ROW("nats-creds", OPT_STRING, PLANE_AT(at, nats_creds), NULL, 0, 0, "FILE", "a NATS user's credentials (JWT and seed)"),           \
        ROW("nats-tls-ca", OPT_STRING, PLANE_AT(at, nats_tls_ca), NULL, 0, 0, "FILE",                                                      \
            "check the NATS server's certificate against these"),                                                                          \
        ROW("nats-tls-cert", OPT_STRING, PLANE_AT(at, nats_tls_cert), NULL, 0, 0, "FILE", "our certificate for the NATS server"),          \
        ROW("zmq-curve-key", OPT_STRING, PLANE_AT(at, curve.key), NULL, 0, 0, "FILE",                                                      \
            "our key pair (kvroute curve-key FILE): ZMQ ports that we bind are open to --zmq-curve-clients only"),                         \
        ROW("zmq-curve-clients", OPT_STRING, PLANE_AT(at, curve.clients), NULL, 0, 0, "FILE",                                              \
            "public keys that may connect to these, one a line"),                                                                          \
        ROW("zmq-curve-servers", OPT_STRING, PLANE_AT(at, curve.servers), NULL, 0, 0, "FILE",                                              \
            "public keys of ZMQ ports that we connect to, KEY [ENDPOINT] a line; other endpoints in clear"),                               \
        ROW("nats-replicas", OPT_U64, PLANE_AT(at, nats_replicas), "1", 1, 5, NULL,                                                        \
            "copies of the streams and buckets that are made in a cluster"),                                                               \
        ROW("nats-tls-key", OPT_STRING, PLANE_AT(at, nats_tls_key), NULL, 0, 0, "FILE", "its private key")

#endif
