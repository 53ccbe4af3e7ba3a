/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Responses of which another stream tells than the one that asked where the request goes: a second filter of the gateway, in
 * observability_mode, sends copies of what passes it and waits for nobody. Both streams name the request by x-request-id.
 *
 *     the asking stream      pick.c        ......... decided ...............................> hears it as if it was told it itself
 *                                                       | joined by the id                 /
 *     the observing stream   observer.c    head of the request ... head of the response, pieces, its last word
 *
 * Asked for is a response whose body the asking stream does not show, from the decision on; observed is a request from its head on. The two
 * come in any order, and whoever is second finds the first by the id. The asking stream may end before the other one tells anything of the
 * response, be the gateway's order what it is (the end of a stream overtakes bytes of others on the same connection), but not before that
 * has told the head of the request. So a pick knows at its stream's end whether somebody observes.
 *
 * An id has room for one of each. A second observer is refused. Where two requests have one id at a time nobody can tell whose a response
 * is: the second is not asked for, and an observer that begins to tell is refused. By then both are decided, if both are observed, as
 * a response comes behind its decision. Ids are those that the router takes for a request's own (ID_MAX, visible characters).
 *
 * Threads. The two streams may be on two loops, and a booking is touched by its own loop alone. So there is
 *   - the table, one for the process, under its lock: ids, and who is asked for, observed, or has a twin. No other lock is taken in it;
 *   - the pick of a response: read and written on the loop of the pick alone;
 *   - mail: an observer of another loop copies what it has heard, and puts it behind the mail of that loop (its lock: MAIL).
 * A response gets its second side while it is in the table, under the lock. A pick that ends takes it out of the table under the lock, and
 * so does an observer that ends alone. Who has taken it out knows whether there is the other side, for good. A response of one side alone
 * is freed there. One of both is freed by the pick's loop when it hears the observer's last word, and by nobody else. An observer says
 * exactly one, when its stream is gone, and as mail keeps its order that comes after all that it has said: what mail points to lives. The
 * last word needs no memory: its place is in the response. Mail that finds no memory or no room is dropped, and with it all that the
 * observer says after that, as an answer with a hole would be misread; its last word comes.
 *
 * A booking ends when its attempt does (pick.c: hear_end takes the attempt from the pick, on the pick's loop), so it ends once, whichever
 * stream tells the end first, and who comes second finds nothing to end.
 *
 * Limits: OBSERVED_MAX responses of at most sizeof(struct observed) + ID_MAX bytes; OBSERVED_MAIL_MAX bytes of mail for each loop.
 */
#ifndef KVR_SERVE_OBSERVED_H
#define KVR_SERVE_OBSERVED_H

#include "app/serve/common/limits.h"
#include "app/serve/data/picker/picker.h"
#include "wire/ext_proc.h"

enum { OBSERVED_MAX = 1 << 17, OBSERVED_MAIL_MAX = 16 << 20 };

struct observed;
struct observed_table;

/* What a pick does with what is told of its response. */
struct observed_ear {
    void (*hear)(struct pick *p, const struct kvr_ext_proc_message *m); /* of the response */
    void (*over)(struct pick *p);                                       /* the last word: leaves, with all that it needs of it */
};

/* Each picker holds it. Before loops run, and after. `t` NULL: a new one. Returns: NULL: no memory. */
struct observed_table *observed_hold(struct observed_table *t);
void observed_let_go(struct observed_table *t); /* NULL is fine */

/* Of the pick's loop. */

/* NULL: it cannot be observed: another request has the id, or there is no room, which is counted. */
struct observed *observed_ask(struct picker *p, struct pick *of, const struct observed_ear *ear, const char *id);
/* There is an observer, and its last word is to come. `o` NULL: no. */
bool observed_has_observer(const struct picker *p, const struct observed *o);
void observed_leave(struct picker *p, struct observed *o); /* the pick ends, or wants to hear no more; NULL is fine */

/* Of the observer's loop. */

struct observed *observed_come(struct picker *p, struct kvr_ext_proc_text id); /* NULL: counted; it is refused, or no id */
/* The response begins. Returns: false: counted; it is nobody's, or not known whose. */
bool observed_begin(struct picker *p, const struct observed *o);
/* After that. `m` is what `data` has. Returns: false: counted; nothing more is heard. */
bool observed_tell(struct picker *p, struct observed *o, const struct kvr_ext_proc_message *m, const uint8_t *data, size_t len);
void observed_over(struct picker *p, struct observed *o); /* the last word: the observer forgets it */

#endif
