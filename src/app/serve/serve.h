/* SPDX-License-Identifier: Apache-2.0 */
/* The router program. */
#ifndef KVR_APP_SERVE_H
#define KVR_APP_SERVE_H

#include "app/serve/common/options.h"

/* Who hears of what a check finds. */
struct serve_check_ear {
    /* `key`: the option's name, and `text` is what is wrong with its value; NULL: `text` says where it is. */
    void (*wrong)(void *arg, const char *key, const char *text);
    void (*fact)(void *arg, const char *text); /* what a file says, in a line */
    void *arg;
};
enum serve_file { SERVE_FILE_MODELS, SERVE_FILE_KEYS, SERVE_FILE_POLICY };

/* Checks what serve_main would read, by the same code, and starts nothing: no port is opened, nobody is connected to, nothing is
 * written. */
void serve_check(const struct serve_options *options, const struct serve_check_ear *ear);
/* One of the files that options name. `key` is what a file that cannot be read is told with. */
void serve_check_file(enum serve_file kind, const char *path, const char *key, const struct serve_check_ear *ear);
/* Whether keys name queue classes that there are; policy NULL: there are none. Both files were checked. */
void serve_check_classes(const char *keys, const char *policy, const struct serve_check_ear *ear);

/* Runs until SIGTERM or SIGINT, then drains. Returns: the exit code. */
int serve_main(const struct serve_options *options);

#endif
