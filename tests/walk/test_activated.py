"""An activated adapter: uploaded, invoked, exact, on what the base model left in the KV cache."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
from tests.walk.served import Served, usage_rows
from tokenizers import Tokenizer

from loraplex.platform.demo.seed import DEMO_ADAPTERS

PROMPT = "Hello, I paid twice for order 48213 and nobody answers. Please refund it. Ana Diaz. " * 2
MESSAGES = [{"role": "user", "content": PROMPT}]
CALL = "<|im_start|>assistant\n"
"""What the chat template ends with."""
MIN_MARGIN = 1e-4
BLOCK, NUM_TOKENS = 16, 12


def activated(folder: Path, invocation: list[int]) -> Path:
    """An adapter of the demo, which now acts from its invocation on."""
    shutil.copytree(DEMO_ADAPTERS / "acme" / "support", folder)
    config = folder / "adapter_config.json"
    changes = {"alora_invocation_tokens": invocation, "task_type": "CAUSAL_LM"}
    config.write_text(json.dumps(json.loads(config.read_text()) | changes))
    return folder


def upload(served: Served, name: str, folder: Path) -> str:
    """Returns the digest."""
    names = ("adapter_config.json", "adapter_model.safetensors")
    uploaded = httpx.post(
        f"{served.url}/v1/adapters",
        data={"name": name},
        files={part: (part, (folder / part).read_bytes()) for part in names},
        headers={"Authorization": f"Bearer {served.key('acme')}"},
        timeout=120,
    )
    assert uploaded.status_code == 201, uploaded.text
    return uploaded.json()["digest"]


def ask(served: Served, model: str) -> tuple[str, dict]:
    """The answer, and the row of its usage."""
    body = {"model": model, "messages": MESSAGES, "temperature": 0, "max_tokens": NUM_TOKENS}
    answer = served.post(served.key("acme"), body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] in {model, f"{model}@1"}
    request_id = answer.json()["id"].removeprefix("chatcmpl-")
    rows = usage_rows(served.data_dir, "acme")
    (row,) = [row for row in rows if row["request_id"].removeprefix("req_") == request_id]
    return answer.json()["choices"][0]["message"]["content"], row


def alone(base: Path, adapters: list[Path | None]) -> list[dict]:
    """What transformers and PEFT give for each."""
    requests = [
        {"adapter": path and str(path), "messages": MESSAGES, "max_tokens": NUM_TOKENS}
        for path in adapters
    ]
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("oracle.py")],
        input=json.dumps({"base": str(base), "requests": requests}),
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    return json.loads(done.stdout)


def test_an_activated_adapter_equals_peft_on_what_the_base_left_and_is_the_bases_uncalled(
    served: Served, demo_model: Path, tmp_path: Path
) -> None:
    tokenizer = Tokenizer.from_file(str(demo_model / "tokenizer.json"))
    call = tokenizer.encode(CALL, add_special_tokens=False).ids
    called = activated(tmp_path / "called", call)
    uncalled = activated(tmp_path / "uncalled", [*call, *call])
    digests = [upload(served, path.name, path) for path in (called, uncalled)]
    of_base, of_called = alone(demo_model, [None, called])
    assert min(of_base["margin"], of_called["margin"]) > MIN_MARGIN
    assert of_base["text"] != of_called["text"]

    text, row = ask(served, served.base_model)
    assert text == of_base["text"]
    text, row = ask(served, "acme/called")
    start = row["prompt_tokens"] - len(call)
    assert text == of_called["text"]
    assert row["cached_tokens"] == start // BLOCK * BLOCK > 0
    assert row["adapter_digest"] == digests[0]
    text, row = ask(served, "acme/uncalled")
    assert text == of_base["text"]
    assert row["cached_tokens"] == (row["prompt_tokens"] - 1) // BLOCK * BLOCK
    assert row["adapter_digest"] == digests[1]
