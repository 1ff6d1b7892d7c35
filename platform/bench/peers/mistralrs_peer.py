"""A batch of mixed adapters as mistral.rs computes it, with its own KV cache in half precision.

One thread asks: a runner that several threads ask raises "Already borrowed". So all requests are
opened as streams, whose tokens come whether or not anybody reads, and are read in turn. What
streams get before the last has its first token counts as decoded after it, since nothing tells when
a token came: that can only favour this peer.
"""

import json
import os
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

_DTYPES: Mapping[str, str] = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
_BARE_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
"""A chat template that adds nothing: only requests for chats can be streamed."""


class MistralrsPeer:
    """A runner with all adapters loaded."""

    def __init__(self, mistralrs: Any, runner: Any, clock: Callable[[], float]) -> None:  # noqa: ANN401  a library without types here
        self.versions = version("mistralrs")
        self._mistralrs, self._runner, self._clock = mistralrs, runner, clock

    def run(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Open all requests at once and read a token of each in turn, until all are at their end.

        Raises RuntimeError if a prompt was read as other tokens than it has.
        """
        requests = [
            self._request(prompt, adapter, batch["new_tokens"])
            for prompt, adapter in zip(batch["prompts"], batch["adapters"], strict=True)
        ]
        texts = [""] * len(requests)
        started = self._clock()
        unread = dict(enumerate(map(self._runner.send_chat_completion_request, requests)))
        first_s, num_tokens = 0.0, 0
        while unread:
            for number, stream in list(unread.items()):
                chunk = next(stream, None)
                if chunk is None:
                    del unread[number]
                    continue
                texts[number] += chunk.choices[0].delta.content or ""
                if chunk.usage is not None:  # the last of its request
                    _check(chunk.usage, batch["prompts"][number])
                    num_tokens += chunk.usage.completion_tokens
            first_s = first_s or self._clock() - started
        return {
            "token_ids": None,
            "texts": texts,
            "first_s": first_s,
            "decode_s": self._clock() - started - first_s,
            "num_decoded": num_tokens - len(requests),
        }

    def _request(self, prompt: list[int], adapter: int | None, new_tokens: int) -> Any:  # noqa: ANN401  theirs
        return self._mistralrs.ChatCompletionRequest(
            messages=self._runner.detokenize_text(prompt, skip_special_tokens=False),
            model="base",
            max_tokens=new_tokens,
            temperature=0.0,
            top_k=1,
            stream=True,
            ignore_eos=True,
            adapter=None if adapter is None else str(adapter),
        )


def _check(usage: Any, prompt: list[int]) -> None:  # noqa: ANN401  mistral.rs has no types
    if usage.prompt_tokens != len(prompt):
        raise RuntimeError(f"a prompt of {len(prompt)} tokens became {usage.prompt_tokens}")


def load(start: dict[str, Any], clock: Callable[[], float]) -> MistralrsPeer:
    """Load the base model with all adapters."""
    os.environ["RAYON_NUM_THREADS"] = str(start["threads"])
    import mistralrs  # noqa: PLC0415  reads that

    which = mistralrs.Which.Lora(
        model_id=str(_readable(Path(start["model"]))),
        adapters=[],
        dtype=getattr(mistralrs.ModelDType, _DTYPES[start["dtype"]]),
        max_adapters=len(start["adapters"]),
    )
    runner = mistralrs.Runner(which=which, max_seqs=start["max_requests"], prefix_cache_n=0)
    for index, folder in enumerate(start["adapters"]):
        runner.load_lora_adapter(str(index), folder)
    return MistralrsPeer(mistralrs, runner, clock)


def _readable(model: Path) -> Path:
    """The same files with a config that this reader understands, and a template that adds nothing.

    It knows ``rope_theta``, where newer files have ``rope_parameters``.
    """
    folder = Path(mkdtemp(prefix="mistralrs-"))
    for path in model.iterdir():
        if path.name not in ("config.json", "chat_template.jinja", "tokenizer_config.json"):
            (folder / path.name).symlink_to(path)
    config = json.loads((model / "config.json").read_text())
    config.setdefault("rope_theta", config.get("rope_parameters", {}).get("rope_theta", 10_000.0))
    (folder / "config.json").write_text(json.dumps(config))
    options = json.loads((model / "tokenizer_config.json").read_text())
    options["chat_template"] = _BARE_TEMPLATE
    (folder / "tokenizer_config.json").write_text(json.dumps(options))
    return folder
