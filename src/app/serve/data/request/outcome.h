/* SPDX-License-Identifier: Apache-2.0 */
/* What a phase of a request says when it has done what it can: flow.c goes by it. request.h has the drawing. */
#ifndef KVR_SERVE_OUTCOME_H
#define KVR_SERVE_OUTCOME_H

enum outcome {
    OUTCOME_WAITS,   /* a callback goes on with the phase */
    OUTCOME_DONE,    /* the next phase may begin */
    OUTCOME_NOBODY,  /* no worker can take it now */
    OUTCOME_FAILED,  /* the worker has failed before a byte of its answer went out; the refusal says how */
    OUTCOME_BYTES,   /* a piece of the answer is there: attempt->bytes */
    OUTCOME_WHOLE,   /* the answer is whole */
    OUTCOME_BROKEN,  /* the answer has begun and cannot be completed; the refusal says why */
    OUTCOME_REFUSED, /* an error is to be answered: the refusal */
    OUTCOME_GONE,    /* the client has left */
    OUTCOME_TIME,    /* the timer has struck */
    OUTCOME_GIVEN_UP /* the job of a request that has ended is over */
};

#endif
