/* SPDX-License-Identifier: Apache-2.0 */
#include "app/top/top.h"
#include "base/base.h"
#include "base/log.h"
#include "cli/commands.h"
#include "cli/help.h"

#define OPTIONS struct top_options
#include "cli/log_options.h"
#include "cli/option_rows.h"

static const struct option_row rows[] = {
    BOO("once", once, "false", "one look, as plain lines"),
    DBL("interval", interval, "1", 0.1, 3600, "seconds between two looks"),
    STR("admin-key-file", key_file, NULL, "FILE", "its first key is sent to the admin port"),
    STR("tls-ca", tls_ca, NULL, "FILE", "certificates (PEM) that sign that of an https port; default: the system's"),
    LOG_ROWS(AT(log)),
};

static int run(void *options, struct command_call *called)
{
    struct top_options *o = options;
    if (called->from.operands_n > 1) {
        kvr_log_error("kvroute top: one URL is allowed; see kvroute top --help");
        return 2;
    }
    o->url = called->from.operands_n ? called->from.operands[0] : "http://127.0.0.1:9090";
    return top_main(o);
}

const struct command command_top = {
    .table = {"top", "watch a running router in a terminal", help_top, rows, KVR_ARRAY_LEN(rows), "[URL]", true},
    .options_size = sizeof(struct top_options),
    .run = run};
