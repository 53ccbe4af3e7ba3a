/* SPDX-License-Identifier: Apache-2.0 */
/* What members of bodies may be, in words. */
#ifndef KVR_SERVE_FIELDS_H
#define KVR_SERVE_FIELDS_H

#include <stddef.h>

/* Why a body's member was refused: what is allowed for it. Each member that is read has a row in fields.c. */
void field_refusal(const char *field, char *out, size_t cap);
/* The names of all members that are read anywhere; ends with NULL. */
const char *const *fields_all(void);

#endif
