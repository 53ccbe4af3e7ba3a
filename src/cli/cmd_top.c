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

static int run(int argc, char **argv)
{
    const struct option_table *t = &command_top.table;
    struct top_options o = {0};
    struct options_from from;
    int rc = options_parse(t, argc, argv, &o, &from);
    if (rc == 0 && from.operands_n > 1) {
        kvr_log_error("kvroute top: one URL is allowed; see kvroute top --help");
        rc = 2;
    }
    if (rc == 0) {
        o.url = from.operands_n ? from.operands[0] : "http://127.0.0.1:9090";
        rc = top_main(&o);
    } else if (rc == 1) rc = 0;
    options_free(t, &o, &from);
    return rc;
}

const struct command command_top = {
    .table = {"top", "watch a running router in a terminal", help_top, rows, KVR_ARRAY_LEN(rows), "[URL]", true}, .run = run};
