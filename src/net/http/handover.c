/* SPDX-License-Identifier: Apache-2.0 */
/* Listening sockets from one process to the next: net/http/handover.h. */
#include "net/http/handover.h"

#include "base/base.h"
#include "base/log.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static const char offered[] = "kvroute listeners 2", taken[] = "taken";
enum { A_QUESTION = '?', A_FILE = '+', NO_FILE = '-', NOT_YET = '.' }; /* the first byte of a message */

struct kvr_handover {
    struct kvr_handover_config config;
    uv_poll_t listener, taker;
    int fd, taker_fd; /* -1: none */
    int handles;
    bool was_taken, withdrawn;
};

static int path_of(const char *path, struct sockaddr_un *a)
{
    *a = (struct sockaddr_un){.sun_family = AF_UNIX};
    size_t len = strlen(path);
    if (len == 0 || len >= sizeof a->sun_path) return UV_ENAMETOOLONG;
    memcpy(a->sun_path, path, len + 1);
    return 0;
}

/* ---- giving ------------------------------------------------------------------------------------------- */

static void on_taker(uv_poll_t *p, int status, int events);

static void on_closed(uv_handle_t *handle)
{
    struct kvr_handover *h = handle->data;
    int *fd = handle == (uv_handle_t *)&h->taker ? &h->taker_fd : &h->fd;
    close(*fd);
    *fd = -1;
    if (--h->handles == 0 && !h->config.loop) free(h);
    else if (h->config.loop && !h->was_taken && !h->withdrawn) uv_poll_start(&h->listener, UV_READABLE, on_taker);
}

static void drop_taker(struct kvr_handover *h)
{
    if (h->taker_fd < 0 || uv_is_closing((uv_handle_t *)&h->taker)) return;
    uv_close((uv_handle_t *)&h->taker, on_closed);
    if (!h->was_taken) h->config.denied(h->config.ctx);
}

/* With descriptors beside the text. */
static bool send_with(int to, const char *text, size_t len, const int *fds, size_t n)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * KVR_HANDOVER_FDS_MAX)];
    } control = {0};
    struct iovec v = {(void *)(uintptr_t)text, len};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
    if (n) {
        m.msg_control = control.bytes;
        m.msg_controllen = CMSG_SPACE(sizeof(int) * n);
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        KVR_ASSERT(c);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * n);
        memcpy(CMSG_DATA(c), fds, sizeof(int) * n);
    }
    return sendmsg(to, &m, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)len;
}

static void hand_file(struct kvr_handover *h, const char *question, size_t len)
{
    int fd = h->config.question(h->config.ctx, question, len);
    char kind = fd >= 0 ? A_FILE : fd == KVR_HANDOVER_LATER ? NOT_YET : NO_FILE;
    (void)send_with(h->taker_fd, &kind, 1, &fd, fd >= 0); /* one who does not read them asks no more */
    if (fd >= 0) close(fd);
}

static void on_word(uv_poll_t *p, int status, int)
{
    struct kvr_handover *h = p->data;
    char word[1 + KVR_HANDOVER_QUESTION_MAX];
    ssize_t n = status < 0 ? 0 : recv(h->taker_fd, word, sizeof word, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n > 0 && word[0] == A_QUESTION) {
        hand_file(h, word + 1, (size_t)n - 1);
        return;
    }
    h->was_taken = n == (ssize_t)sizeof taken - 1 && memcmp(word, taken, sizeof taken - 1) == 0;
    drop_taker(h);
    if (h->was_taken) h->config.taken(h->config.ctx);
}

/* Is the other side of the same user? */
static bool is_mine(int fd)
{
    struct ucred c;
    socklen_t len = sizeof c;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &c, &len) == 0 && c.uid == geteuid();
}

/* One taker at a time; another one waits in the kernel's queue, and is not looked at meanwhile. */
static void on_taker(uv_poll_t *p, int status, int)
{
    struct kvr_handover *h = p->data;
    int fds[KVR_HANDOVER_FDS_MAX];
    if (status < 0) return;
    int fd = accept4(h->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) return;
    if (!is_mine(fd) || !send_with(fd, offered, sizeof offered - 1, fds, h->config.sockets(h->config.ctx, fds)) ||
        uv_poll_init_socket(h->config.loop, &h->taker, fd)) {
        close(fd);
        return;
    }
    h->taker_fd = fd;
    h->taker.data = h;
    h->handles++;
    uv_poll_stop(&h->listener);
    uv_poll_start(&h->taker, UV_READABLE | UV_DISCONNECT, on_word);
    h->config.asked(h->config.ctx);
}

/* Beside its place and then renamed over it: who asks meanwhile finds the old one or this one. */
static int bind_at(const char *path)
{
    struct sockaddr_un a;
    struct stat there;
    char beside[sizeof a.sun_path + 8];
    if (lstat(path, &there) == 0 && !S_ISSOCK(there.st_mode)) return UV_ENOTSOCK; /* a file of somebody's */
    snprintf(beside, sizeof beside, "%s.new", path);
    int rc = path_of(beside, &a);
    if (rc) return rc;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return uv_translate_sys_error(errno);
    (void)unlink(beside);
    mode_t mask = umask(0177);
    rc = bind(fd, (struct sockaddr *)&a, sizeof a) || listen(fd, 4) || rename(beside, path) ? uv_translate_sys_error(errno) : 0;
    umask(mask);
    if (rc == 0) return fd;
    (void)unlink(beside);
    close(fd);
    return rc;
}

int kvr_handover_offer(const struct kvr_handover_config *config, struct kvr_handover **out)
{
    struct kvr_handover *h = calloc(1, sizeof *h);
    if (!h) return UV_ENOMEM;
    h->config = *config;
    h->taker_fd = -1;
    h->fd = bind_at(config->path);
    int rc = h->fd < 0 ? h->fd : uv_poll_init_socket(config->loop, &h->listener, h->fd);
    if (rc) {
        if (h->fd >= 0) close(h->fd);
        free(h);
        return rc;
    }
    h->listener.data = h;
    h->handles = 1;
    uv_poll_start(&h->listener, UV_READABLE, on_taker);
    *out = h;
    return 0;
}

void kvr_handover_withdraw(struct kvr_handover *h)
{
    if (!h || h->withdrawn) return;
    h->withdrawn = true;
    if (!h->was_taken) (void)unlink(h->config.path);
    uv_close((uv_handle_t *)&h->listener, on_closed);
}

void kvr_handover_close(struct kvr_handover *h)
{
    if (!h) return;
    kvr_handover_withdraw(h);
    h->was_taken = true; /* nobody is told any more */
    h->config.loop = NULL;
    drop_taker(h);
    if (h->handles == 0) free(h);
}

/* ---- taking ------------------------------------------------------------------------------------------- */

/* Returns: how many bytes came, and *got descriptors; or a libuv error. */
static ssize_t receive_with(int from, char *text, size_t cap, int *fds, size_t *got)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * KVR_HANDOVER_FDS_MAX)];
    } control;
    struct iovec v = {text, cap};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    struct pollfd p = {.fd = from, .events = POLLIN};
    *got = 0;
    if (poll(&p, 1, KVR_HANDOVER_MS) <= 0) return UV_ETIMEDOUT;
    ssize_t n = recvmsg(from, &m, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (n <= 0) return n < 0 ? uv_translate_sys_error(errno) : UV_EOF;
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    *got = c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS ? (c->cmsg_len - CMSG_LEN(0)) / sizeof(int) : 0;
    if (*got) memcpy(fds, CMSG_DATA(c), *got * sizeof(int));
    return n;
}

/* Of a process of this user. Returns: how many sockets came, 0: it has gone, or a libuv error. */
static int receive_sockets(int from, int *fds)
{
    char text[64];
    size_t got;
    ssize_t n = receive_with(from, text, sizeof text, fds, &got);
    if (n == UV_EOF || n == UV_ECONNRESET) return 0; /* closed without a word: it offers them no more */
    if (n < 0) return (int)n;
    if (got && n == (ssize_t)sizeof offered - 1 && memcmp(text, offered, sizeof offered - 1) == 0) return (int)got;
    for (size_t i = 0; i < got; i++) close(fds[i]);
    return UV_EPROTO;
}

int kvr_handover_ask(const char *path, int fds[KVR_HANDOVER_FDS_MAX], int *link)
{
    struct sockaddr_un a;
    int rc = path_of(path, &a);
    if (rc) return rc;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0) return uv_translate_sys_error(errno);
    if (connect(fd, (struct sockaddr *)&a, sizeof a)) rc = errno == ENOENT || errno == ECONNREFUSED ? 0 : uv_translate_sys_error(errno);
    else rc = is_mine(fd) ? receive_sockets(fd, fds) : UV_EPERM;
    if (rc <= 0) close(fd);
    else *link = fd;
    return rc;
}

int kvr_handover_question(int link, const void *question, size_t len)
{
    char text[1 + KVR_HANDOVER_QUESTION_MAX] = {A_QUESTION}, kind;
    int fds[KVR_HANDOVER_FDS_MAX];
    size_t got;
    KVR_ASSERT(len <= KVR_HANDOVER_QUESTION_MAX);
    memcpy(text + 1, question, len);
    if (send(link, text, 1 + len, MSG_NOSIGNAL) != (ssize_t)(1 + len)) return KVR_HANDOVER_BROKEN;
    ssize_t n = receive_with(link, &kind, 1, fds, &got);
    if (n == 1 && kind == A_FILE && got == 1) return fds[0];
    for (size_t i = 0; i < got; i++) close(fds[i]);
    if (n != 1) return KVR_HANDOVER_BROKEN;
    return kind == NOT_YET ? KVR_HANDOVER_LATER : KVR_HANDOVER_NONE;
}

int kvr_handover_take(int link)
{
    ssize_t n = send(link, taken, sizeof taken - 1, MSG_NOSIGNAL);
    int rc = n == (ssize_t)sizeof taken - 1 ? 0 : uv_translate_sys_error(errno);
    close(link);
    return rc;
}
