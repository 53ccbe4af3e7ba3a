# SPDX-License-Identifier: Apache-2.0
"""What is asked of the routers: workloads (kvroute replay --workload) and the engines they meet."""


class Row:
    def __init__(self, name, workload, blocks, speedup=1, trace=False, meaning="", host=0):
        self.name, self.workload, self.blocks, self.speedup, self.trace, self.meaning = name, workload, blocks, speedup, trace, meaning
        self.host = host  # blocks in the host's memory behind these, of mocks; reading one takes a tenth of computing it


CONVERSATIONS = "24 system prompts of 2,048 tokens, five turns of about 256, answers of 24; one cache does not hold all system prompts"
HOT = "four of five requests share 6,144 tokens, the others one of 64 prefixes of 2,048"
HOST = "conversations with pauses of 8 s, of which most have left the device when they go on; hosts with four times the caches"
TRACE = "rows of a Mooncake trace, answers of at most 24 tokens"


def rows(seconds=16):
    """In the order in which they run. Traces have their own times."""
    timed = lambda name, workload, rate, blocks, meaning: Row(name, f"{workload},rate={rate},seconds={seconds:g}", blocks, meaning=meaning)
    traced = lambda name, speedup, n: Row(name, f"trace,speedup={speedup},requests={n},output-max=24", 16384, 2, True,
                                          f"{TRACE}: {n} rows, {speedup} times as fast; engines twice as fast")
    return [
        timed("conv-15", "conversations", 15, 2560, CONVERSATIONS),
        timed("conv-60", "conversations", 60, 2560, CONVERSATIONS),
        timed("conv-95", "conversations", 95, 2560, CONVERSATIONS + "; more than the engines can do without a good cache"),
        timed("hot-55", "hot", 55, 8192, HOT),
        timed("hot-120", "hot", 120, 8192, HOT),
        timed("siblings-48", "siblings", 48, 8192, "16 requests at one moment that share 4,096 new tokens"),
        timed("uniform-30", "uniform", 30, 8192, "512 to 4,096 tokens, nothing shared"),
        timed("tail-50", "tail", 50, 8192, "lognormal lengths up to 24,000 tokens, nothing shared"),
        Row("host-12", f"conversations,rate=12,think=8,own-tokens=800,seconds={3 * seconds:g}", 2560, meaning=HOST, host=10240),
        Row("host-own-12", f"conversations,rate=12,think=8,system-tokens=0,own-tokens=1200,seconds={3 * seconds:g}", 2560,
            meaning=HOST + "; no prompt begins as another conversation's", host=10240),
        traced("trace-x4", 4, 250),
        traced("trace-x8", 8, 440),
    ]


def vllm_rows(seconds):
    """Of real engines with a small model, on few cores: prompts of less than 2,048 tokens (of these letters nearly each is a token)."""
    small = "12 system prompts of 1,000 letters, four turns of 100, answers of 16; one cache holds a third of them"
    row = lambda rate: Row(f"vllm-conv-{rate}", f"conversations,rate={rate},seconds={seconds:g},groups=12,system-tokens=1000,own-tokens=100,turns=4,think=0.5,output=16",
                           192, meaning=small)
    return [row(2), row(4), row(6)]
