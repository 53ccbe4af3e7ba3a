# SPDX-License-Identifier: Apache-2.0
"""500 requests as users send them, over two workers: whatever is predicted is predicted exactly, and no view is ever less than whole.

KVR_SEED chooses others, KVR_REQUESTS how many, KVR_WITHOUT (an expression) leaves out kinds."""
import collections
import os
import random
import re

from harness import (ADAPTER, BLOCK, Serve, cached, output_tokens, post, predicted, prompt_tokens, stream_and_hang_up, tokens, usage, wait_until, words,
                     worker)

SEED = int(os.environ.get("KVR_SEED", "1"))
REQUESTS = int(os.environ.get("KVR_REQUESTS", "500"))
USAGE = {"stream": True, "stream_options": {"include_usage": True}}


class Script:
    """One kind of request a method. Each gives (path, body, what it is): `exact` must be predicted; `unpredicted` is served and must do no harm;
    `refused` is one that the engine refuses."""

    def __init__(self, rng):
        self.rng = rng
        without = os.environ.get("KVR_WITHOUT")
        self.kinds = sorted(k for k in dir(self) if k.startswith("do_") and not (without and re.search(without, k)))

    def __call__(self):
        kind = self.rng.choice(self.kinds)
        path, body, what, *how = getattr(self, kind)()
        return kind[3:], path, {"model": "tiny", **body}, what, (how or [post])[0]

    def numbers(self, most=300):
        """The beginning of one of some conversations."""
        return tokens(f"mixed {SEED} {self.rng.randrange(16)}", 400)[:self.rng.randrange(20, most)]

    def text(self):
        """The same for text: whole conversations grow by words."""
        return " ".join(words(f"mixed {SEED} {self.rng.randrange(16)}", 80).split()[:self.rng.randrange(5, 80)])

    def say(self):
        return [{"role": "system", "content": words("system", 20)}, {"role": "user", "content": self.text()}]

    def completion(self, prompt, what="exact", how=post, **more):
        return "/v1/completions", {"prompt": prompt, "max_tokens": self.rng.choice((1, 2, 3, 40)), **more}, what, how

    def chat(self, how=post, **more):
        return "/v1/chat/completions", {"messages": self.say(), "max_tokens": 2, **more}, "exact", how

    def do_tokens(self):
        return self.completion(self.numbers())

    def do_text(self):
        return self.completion(self.text())

    def do_list_of_one_text(self):
        return self.completion([self.text()])

    def do_without_special_tokens(self):
        return self.completion(self.text(), add_special_tokens=False)

    def do_salt(self):
        return self.completion(self.numbers(), cache_salt=self.rng.choice(("s1", "s2", ADAPTER)))

    def do_salted_text(self):
        return self.completion(self.text(), cache_salt="s1")

    def do_adapter(self):
        return self.completion(self.numbers(), model=ADAPTER)

    def do_adapter_and_salt(self):
        return self.completion(self.numbers(), model=ADAPTER, cache_salt=self.rng.choice(("s1", ADAPTER)))

    def do_echo(self):
        return self.completion(self.numbers(), echo=True)

    def do_echo_logprobs(self):
        return self.completion(self.numbers(), "unpredicted", echo=True, logprobs=1)

    def do_prompt_logprobs(self):
        return self.completion(self.numbers(), "unpredicted", prompt_logprobs=1)

    def do_truncated_tokens(self):
        return self.completion(self.numbers(), truncate_prompt_tokens=self.rng.choice((64, 100, 500)))

    def do_truncated_text(self):
        return self.completion(self.text(), truncate_prompt_tokens=self.rng.choice((64, 100, 500)))

    def do_several_answers(self):
        return self.completion(self.numbers(), "unpredicted", n=2, temperature=0.8)  # the second finds what the first computes; usage is of one of them

    def do_batch(self):
        return self.completion([self.numbers(), self.numbers()], "unpredicted")

    def do_batch_of_texts(self):
        return self.completion([self.text(), self.text()], "unpredicted")

    def do_chat(self):
        return self.chat()

    def do_chat_salt(self):
        return self.chat(cache_salt="s2")

    def do_chat_adapter(self):
        return self.chat(model=ADAPTER)

    def do_chat_truncated(self):
        return self.chat(truncate_prompt_tokens=self.rng.choice((64, 100)))

    def do_chat_stream(self):
        return self.chat(**USAGE)

    def do_stream_closed_at_done(self):
        return self.completion(self.numbers(), how=stream_and_hang_up, **USAGE)

    def do_chat_stream_closed_at_done(self):
        return self.chat(how=stream_and_hang_up, **USAGE)

    def do_responses(self):
        return "/v1/responses", {"input": self.text(), "max_output_tokens": 2}, "exact"

    def do_messages(self):
        return "/v1/messages", {"messages": self.say()[1:], "max_tokens": 2}, "exact"

    def do_stream_that_fails(self):
        return self.completion([5000, *self.numbers()], "refused", stream=True)

    def do_refused(self):
        return self.completion([5000, *self.numbers()], "refused")


def whole(serve):
    return all(v["trusted"] and v.get("view", "whole") == "whole" for v in serve.views().values())


def stored_at_least(a):
    """Blocks that the engine must have told of when it has given this answer: all that it computed and was full."""
    return max(0, (prompt_tokens(a) + output_tokens(a) - 1) // BLOCK - cached(a) // BLOCK)


def test_500_mixed_requests_are_predicted_exactly(start, engines, settle):
    serve = start(Serve, engines)
    wait_until("views", lambda: len(serve.views()) == len(engines) and whole(serve))
    by_worker = dict(enumerate(engines, 1))
    script = Script(random.Random(SEED))
    seen, exact, wrong, hits, reused = collections.Counter(), 0, [], 0, 0
    watches = settle(serve, engines)
    for i in range(REQUESTS):
        kind, path, body, what, how = script()
        stored = {e: sum(w.stored.values()) for e, w in zip(engines, watches)}
        a = how(serve, path, body)
        seen[kind] += 1
        told = {}
        if what == "refused":
            assert a.status == 400 or a.status == 200 and b'"error"' in a.body, (kind, a.status, a.body[:300])
        else:
            assert a.status == 200 and usage(a), (kind, a.status, a.body[:300])
            if what == "exact":
                if body.get("n", 1) == 1:
                    told = {by_worker[worker(a)]: stored[by_worker[worker(a)]] + stored_at_least(a)}
                p, c = predicted(a), cached(a)
                exact += 1
                hits += c > 0
                reused += c
                if p != c:
                    wrong.append(f"{i} {kind}: predicted {p}, the engine had {c} of {prompt_tokens(a)}; {a.headers['x-kvroute-reason']}")
        for w in watches if not told else ():  # what it stored cannot be said from its answer
            w.fence()
        settle(serve, engines, told)
        if not whole(serve):
            wrong.append(f"{i} {kind}: {[(k, v.get('reason')) for k, v in serve.views().items() if not v['trusted'] or v.get('view', 'whole') != 'whole']}")
    print(f"{REQUESTS} requests of {len(seen)} kinds, {exact} predicted, {hits} with a hit, {reused} tokens reused; differences: {len(wrong)}")
    print(collections.Counter(w.split(":")[0].split(" ")[1] for w in wrong))
    assert not wrong, "\n".join(wrong[:40])
    assert exact > REQUESTS / 2 and hits > exact / 3
    counted = {k: serve.metric("requests_total", status=k) for k in ("499", "500", "502", "503", "504")}
    assert not any(counted.values()), counted
