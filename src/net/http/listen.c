/* SPDX-License-Identifier: Apache-2.0 */
/* How a port is bound; net/http/listen.h says why so. */
#include "net/http/listen.h"

#include <errno.h>
#include <unistd.h>
#include <uv.h>

int kvr_listen_open(const char *host, uint16_t port, bool joins, bool listens)
{
    struct sockaddr_storage a = {0};
    int on = 1;
    if (uv_ip4_addr(host, port, (struct sockaddr_in *)&a) && uv_ip6_addr(host, port, (struct sockaddr_in6 *)&a)) return UV_EINVAL;
    socklen_t len = a.ss_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    int fd = socket(a.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return uv_translate_sys_error(errno);
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) || (joins && setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on)) ||
        bind(fd, (struct sockaddr *)&a, len) || setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on) ||
        (listens && listen(fd, KVR_LISTEN_BACKLOG))) {
        int rc = uv_translate_sys_error(errno);
        close(fd);
        return rc;
    }
    return fd;
}

uint16_t kvr_listen_port(int fd)
{
    struct sockaddr_in a = {0}; /* its port is where the one of IPv6 is */
    socklen_t len = sizeof a;
    return getsockname(fd, (struct sockaddr *)&a, &len) ? 0 : ntohs(a.sin_port);
}
