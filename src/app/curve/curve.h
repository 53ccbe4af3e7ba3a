/* SPDX-License-Identifier: Apache-2.0 */
/* `kvroute curve-key FILE`: a key pair for --zmq-curve-key. */
#ifndef KVR_APP_CURVE_H
#define KVR_APP_CURVE_H

/* Writes the pair to a file that is not there yet, and the public key to stdout. Returns: the exit status. */
int curve_key_main(const char *path);

#endif
