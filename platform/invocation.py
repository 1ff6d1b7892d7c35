"""From which token of a prompt on an activated adapter acts."""

from array import array
from collections.abc import Sequence


def adapter_start(prompt: Sequence[int], invocation: Sequence[int]) -> int | None:
    """Return where the last occurrence of the invocation in the prompt begins; 0 for an adapter
    that needs none, None if it does not occur.

    As PEFT does (`peft.tuners.lora.variants.calculate_alora_offsets`), which looks at the prompt
    once: without the invocation the adapter never acts, whatever is generated.
    """
    if not invocation:
        return 0
    tokens, wanted = array("q", prompt), array("q", invocation)
    data, part, size = tokens.tobytes(), wanted.tobytes(), tokens.itemsize
    end = len(data)
    while (found := data.rfind(part, 0, end)) >= 0:
        if found % size == 0:
            return found // size
        end = found + len(part) - 1  # it lay across the tokens' borders
    return None
