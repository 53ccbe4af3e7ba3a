/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fields of a form that is held as a whole: multipart/form-data (RFC 7578), of which an engine takes `model` and audio or pictures.
 *
 *     --boundary CRLF
 *     Content-Disposition: form-data; name="model" CRLF
 *     CRLF
 *     whisper                                               the value: up to the CRLF of the next delimiter
 *     CRLF --boundary CRLF ... CRLF --boundary-- CRLF
 *
 * What is before the first delimiter and behind the last is passed over (RFC 2046, 5.1.1), and so is white space behind a delimiter.
 * The engine's reader is another program, and both must see the same parts. So what two readers may understand in two ways is refused
 * and not guessed: a line that begins with a delimiter and goes on, a folded header, a part with two names or with one in another
 * character set, a field that is encoded, a form without its end.
 *
 * One pass over the body, no memory. What a form may hold inside a part is not looked at: a form in a part is its value.
 * Threads: pure functions.
 */
#ifndef KVR_WIRE_FORM_H
#define KVR_WIRE_FORM_H

#include <stdbool.h>
#include <stddef.h>

enum { KVR_FORM_BOUNDARY_MAX = 70 /* RFC 2046 */, KVR_FORM_PARTS_MAX = 2048 };

/* Is that Content-Type a form's? */
bool kvr_form_is(const char *type, size_t len);
/* The boundary that it names. Returns: NULL; or what is wrong, as a sentence for the client. Static, as that below. */
const char *kvr_form_boundary(const char *type, size_t len, char out[KVR_FORM_BOUNDARY_MAX + 1]);

struct kvr_form_field {
    const char *ptr; /* of the first of that name; NULL: there is none. Borrows from the body */
    size_t len;
    size_t times; /* how many there are */
};

/* out[i]: the field names[i], of n. Returns: NULL; or what is wrong with the form: what is in `out` then does not count. */
const char *kvr_form_pick(const char *body, size_t len, const char *boundary, const char *const *names, size_t n,
                          struct kvr_form_field *out);

#endif
