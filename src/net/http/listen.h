/* SPDX-License-Identifier: Apache-2.0 */
/* A port to listen on, for servers of which each loop has its own. Threads: any. */
#ifndef KVR_NET_HTTP_LISTEN_H
#define KVR_NET_HTTP_LISTEN_H

#include <stdbool.h>
#include <stdint.h>

enum { KVR_LISTEN_BACKLOG = 1024 };

/*
 * Binds so that nobody shares the port unawares. The first socket of a process binds without SO_REUSEPORT, which fails if anybody has the
 * port, even with it; and sets it before it listens, so that the process's other loops may join (`joins`). Linux looks at both sockets'
 * flags at each bind (socket(7)), and puts a socket that has it into the group at listen. So one that waits beside sockets of another
 * process does not listen: the kernel would give it connections that nobody may ever take.
 * Returns: a socket that does not block, or a libuv error.
 */
int kvr_listen_open(const char *host, uint16_t port, bool joins, bool listens);
/* The port of a socket; 0: it has none. */
uint16_t kvr_listen_port(int fd);

#endif
