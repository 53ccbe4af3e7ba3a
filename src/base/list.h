/* SPDX-License-Identifier: Apache-2.0 */
/* Lists that lead both ways by `next` and `prev`, NULL at their ends. One way: KVR_UNLINK (base/base.h). */
#ifndef KVR_LIST_H
#define KVR_LIST_H

/* x becomes the first. */
#define KVR_LIST_PUSH(first, x)                                                                                                            \
    do {                                                                                                                                   \
        (x)->prev = NULL;                                                                                                                  \
        (x)->next = (first);                                                                                                               \
        if ((x)->next) (x)->next->prev = (x);                                                                                              \
        (first) = (x);                                                                                                                     \
    } while (0)

/* Takes x out of the list that begins at `first`, which has it. */
#define KVR_LIST_TAKE(first, x)                                                                                                            \
    do {                                                                                                                                   \
        if ((x)->next) (x)->next->prev = (x)->prev;                                                                                        \
        *((x)->prev ? &(x)->prev->next : &(first)) = (x)->next;                                                                            \
    } while (0)

#endif
