/* SPDX-License-Identifier: Apache-2.0 */
#include "app/curve/curve.h"

#include <stdio.h>

#include "base/base.h"
#include "base/log.h"
#include "net/zmq/curve.h"

int curve_key_main(const char *path)
{
    char key[41], err[400];
    if (kvr_curve_make(path, key, err, sizeof err)) {
        kvr_log_error("kvroute curve-key: %s", err);
        return 1;
    }
    printf("%s\n", key);
    return 0;
}
