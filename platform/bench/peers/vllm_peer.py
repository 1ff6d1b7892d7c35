"""A batch of mixed adapters as vLLM's build for CPUs computes it, in this process and eagerly."""

import os
from collections.abc import Callable
from typing import Any

_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""vLLM takes these as the greatest rank."""


class VllmPeer:
    """An engine in which all adapters have a place."""

    def __init__(
        self,
        vllm: Any,  # noqa: ANN401  a library without types here
        engine: Any,  # noqa: ANN401  vLLM's
        adapters: list[Any],
        clock: Callable[[], float],
    ) -> None:
        self.versions = str(vllm.__version__)
        self._vllm, self._engine, self._adapters = vllm, engine, adapters
        self._clock = clock

    def run(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Add all requests and step until all are at their end."""
        options = self._vllm.SamplingParams(
            temperature=0.0, max_tokens=batch["new_tokens"], ignore_eos=True, detokenize=False
        )
        token_ids: dict[str, list[int]] = {}
        started = self._clock()
        for number, prompt in enumerate(batch["prompts"]):
            adapter = batch["adapters"][number]
            self._engine.add_request(
                str(number),
                {"prompt_token_ids": prompt},
                options,
                lora_request=None if adapter is None else self._adapters[adapter],
            )
        first_s, before = 0.0, 0
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                token_ids[output.request_id] = list(output.outputs[0].token_ids)
            if not first_s and len(token_ids) == len(batch["prompts"]):
                first_s = self._clock() - started
                before = sum(map(len, token_ids.values()))
        return {
            "token_ids": [token_ids[str(number)] for number in range(len(token_ids))],
            "texts": None,
            "first_s": first_s,
            "decode_s": self._clock() - started - first_s,
            "num_decoded": sum(map(len, token_ids.values())) - before,
        }


def load(start: dict[str, Any], clock: Callable[[], float]) -> VllmPeer:
    """Load the base model; adapters follow when they are first used."""
    os.environ |= {
        "OMP_NUM_THREADS": str(start["threads"]),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # as all other contenders are
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    import vllm  # noqa: PLC0415  reads those
    from vllm.lora.request import LoRARequest  # noqa: PLC0415  slow

    options: dict[str, Any] = {}
    if start["adapters"]:
        most = max(start["max_rank"], _RANKS[0])
        options = {
            "enable_lora": True,
            "max_loras": len(start["adapters"]),
            "max_lora_rank": min(rank for rank in _RANKS if rank >= most),
        }
    model = vllm.LLM(
        start["model"],
        dtype=start["dtype"],
        enforce_eager=True,
        max_model_len=start["max_tokens"],
        max_num_seqs=start["max_requests"],
        max_num_batched_tokens=start["max_requests"] * start["max_tokens"],
        enable_prefix_caching=False,
        **options,
    )
    adapters = [
        LoRARequest(str(index), index + 1, folder) for index, folder in enumerate(start["adapters"])
    ]
    return VllmPeer(vllm, model.llm_engine, adapters, clock)
