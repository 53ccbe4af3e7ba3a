/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A whole program of kvroute on a thread of the test, and a plain client for it: for what only happens when a chosen call of the
 * program is made to do something else (CMakeLists.txt wraps it). One program a process and command: they have static state.
 */
#ifndef KVR_IN_PROCESS_H
#define KVR_IN_PROCESS_H

#include "test.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cli/commands.h"

struct program {
    pthread_t thread;
    const struct command *command;
    const char *argv[48];
    int argc, rc;
    bool exempt; /* with failing_memory.h: its memory never fails */
};

static inline void free_port(char out[16])
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    int s = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(s, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(getsockname(s, (struct sockaddr *)&a, &len), 0);
    close(s);
    snprintf(out, 16, "%u", ntohs(a.sin_port));
}

static inline void *program_main(void *arg)
{
    struct program *p = arg;
#ifdef KVR_FAILING_MEMORY_H
    if (p->exempt) memory_exempts_this_thread();
#endif
    p->rc = command_run(p->command, NULL, p->argc, (char **)(uintptr_t)p->argv);
    return NULL;
}

/* argv[0] and on; ends with a NULL. */
static inline void program_start(struct program *p, const struct command *command, const char *const *args)
{
    p->command = command;
    for (p->argc = 0; args[p->argc]; p->argc++) p->argv[p->argc] = args[p->argc];
    assert_int_equal(pthread_create(&p->thread, NULL, program_main, p), 0);
}

static inline int dial(const char *port)
{
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons((uint16_t)strtoul(port, NULL, 10))};
    struct timeval patience = {.tv_sec = 20};
    int s = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (connect(s, (struct sockaddr *)&a, sizeof a)) {
        close(s);
        return -1;
    }
    return s;
}

static inline void send_request(int s, const char *method, const char *path, const char *body)
{
    char *text = NULL;
    int n = asprintf(&text, "%s %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s", method,
                     path, strlen(body), body);
    for (int at = 0; at < n;) {
        ssize_t k = send(s, text + at, (size_t)(n - at), MSG_NOSIGNAL);
        if (k <= 0) break; /* the answer may be there all the same */
        at += (int)k;
    }
    free(text);
}

static inline bool answer_is_whole(const char *text, size_t len)
{
    const char *body = strstr(text, "\r\n\r\n"), *length = strcasestr(text, "\r\ncontent-length: ");
    if (!body || strncmp(text, "HTTP/1.1 ", 9)) return false;
    if (strcasestr(text, "\r\ntransfer-encoding: chunked")) return len > 5 && !strcmp(text + len - 5, "0\r\n\r\n");
    return length && len - (size_t)(body + 4 - text) >= strtoul(length + 18, NULL, 10);
}

/* The answer's status, and the whole of it in text[cap]. 0: the connection was closed without one; -1: a torn one. */
static inline int read_answer(int s, char *text, size_t cap)
{
    size_t len = 0;
    text[0] = 0;
    while (len + 1 < cap && !answer_is_whole(text, len)) {
        ssize_t k = recv(s, text + len, cap - 1 - len, 0);
        if (k < 0 && errno == EAGAIN) fail_msg("neither an answer nor an end of the connection");
        if (k <= 0) return len ? -1 : 0;
        len += (size_t)k;
        text[len] = 0;
    }
    return (int)strtol(text + 9, NULL, 10);
}

static inline int ask(const char *port, const char *method, const char *path, const char *body, char *text, size_t cap)
{
    int s = dial(port);
    if (s < 0) return 0;
    send_request(s, method, path, body);
    int status = read_answer(s, text, cap);
    close(s);
    return status;
}

static inline bool is_up(const char *port)
{
    char text[4096];
    return ask(port, "GET", "/health", "", text, sizeof text) == 200;
}

/* Whether no rank of /loads has anything booked. */
static inline bool nothing_is_booked(const char *admin_port)
{
    static const char *const members[] = {"\"active_prefill_tokens\":", "\"active_decode_blocks\":", "\"active_requests\":"};
    char text[16384];
    if (ask(admin_port, "GET", "/loads", "", text, sizeof text) != 200) return false;
    for (size_t i = 0; i < KVR_ARRAY_LEN(members); i++)
        for (const char *p = text; (p = strstr(p, members[i]));) {
            p += strlen(members[i]);
            if (strtoull(p, NULL, 10)) return false;
        }
    return true;
}

/* SIGTERM, and the exit code. */
static inline int program_stop(struct program *p)
{
    kill(getpid(), SIGTERM);
    pthread_join(p->thread, NULL);
    return p->rc;
}

#endif
