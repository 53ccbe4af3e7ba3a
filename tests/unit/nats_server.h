/* SPDX-License-Identifier: Apache-2.0 */
/* A real nats-server on loopback, JetStream on, its store in a folder of its own, which outlives a kill. */
#ifndef KVR_NATS_SERVER_H
#define KVR_NATS_SERVER_H

#include "test.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

struct server {
    pid_t pid;
    int port;
    char dir[64], url[64];
};

static inline int free_port(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &len), 0);
    close(fd);
    return ntohs(a.sin_port);
}

static inline bool answers(const struct server *s)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)s->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    bool ok = connect(fd, (struct sockaddr *)&a, sizeof a) == 0;
    close(fd);
    return ok;
}

static inline void server_run(struct server *s)
{
    char port[16];
    snprintf(port, sizeof port, "%d", s->port);
    s->pid = fork();
    if (s->pid == 0) {
        int null = open("/dev/null", O_WRONLY);
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails does not leave it behind */
        dup2(null, 1);
        dup2(null, 2);
        execlp("nats-server", "nats-server", "-a", "127.0.0.1", "-p", port, "-js", "-sd", s->dir, (char *)NULL);
        execl("/usr/sbin/nats-server", "nats-server", "-a", "127.0.0.1", "-p", port, "-js", "-sd", s->dir, (char *)NULL);
        _exit(127);
    }
    WAIT_FOR(answers(s), 20);
}

static inline void server_start(struct server *s)
{
    snprintf(s->dir, sizeof s->dir, "/tmp/kvroute-nats-XXXXXX");
    assert_non_null(mkdtemp(s->dir));
    s->port = free_port();
    snprintf(s->url, sizeof s->url, "nats://127.0.0.1:%d", s->port);
    server_run(s);
}

static inline void server_kill(struct server *s)
{
    kill(s->pid, SIGKILL);
    waitpid(s->pid, NULL, 0);
}

static inline void server_remove(struct server *s)
{
    char command[128];
    server_kill(s);
    snprintf(command, sizeof command, "rm -rf %s", s->dir);
    assert_int_equal(system(command), 0);
}

#endif
