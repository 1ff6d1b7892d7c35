"""One peer of a benchmark, in a process of its own: `python peer_process.py NAME`.

What stands in this folder runs in the Python that has the peer, where nothing of ours need be
installed: it imports the standard library and the peer alone.

Lines of JSON on standard input and output. The first says what to load:
``{"model", "adapters", "dtype", "device", "threads", "max_requests", "max_tokens", "max_rank",
"by_processor_time"}``, folders of the base model and of PEFT adapters, how many requests of how
many tokens there are at most, and whether to count only the time in which this process computes.
``{"versions"}`` answers it when all is loaded. Each line after it is a batch to be run greedily
to its full length, ``{"adapters", "prompts", "new_tokens"}``: for each request the index of its
adapter, or null for the base model, and its tokens, as many in each. The answer is ``{"token_ids",
"texts", "first_s", "decode_s", "num_decoded"}``: tokens of each request, or their text where the
peer tells no tokens; seconds until every request has a token; seconds from then to the end, and
tokens in that time.
"""

import importlib
import json
import os
import sys
from time import perf_counter, process_time


def main(name: str) -> None:
    """Answer line by line until standard input ends; whatever else is printed goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    start = json.loads(sys.stdin.readline())
    clock = process_time if start["by_processor_time"] else perf_counter
    peer = importlib.import_module(f"{name}_peer").load(start, clock)
    answers.write(json.dumps({"versions": peer.versions}) + "\n")
    for line in sys.stdin:
        answers.write(json.dumps(peer.run(json.loads(line))) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
