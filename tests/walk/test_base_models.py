"""A base model that is not a Llama, served as users serve one, and replaced under its name."""

import json
import shutil
from pathlib import Path

from tests import tiny_models
from tests.engine.alone import MIN_MARGIN, NUM_TOKENS, generate_alone
from tests.walk.served import run_cli, serving
from transformers import GPT2Config

PROMPT = "Nobody waits for a stranger's download"


def gpt2(width: int) -> GPT2Config:
    return GPT2Config(
        vocab_size=320,
        n_embd=width,
        n_layer=2,
        n_head=2,
        n_positions=64,
        initializer_range=0.2,
        bos_token_id=0,
        eos_token_id=1,
    )


def test_gpt2_with_an_adapter_equals_peft_and_a_replaced_base_fails_that_adapter_alone(
    tmp_path: Path,
) -> None:
    base, data_dir = tmp_path / "tiny-gpt2", tmp_path / "data"
    at = ("--data-dir", str(data_dir))
    tiny_models.save_model(base, gpt2(width=64))
    adapter = tiny_models.save_adapter(
        tmp_path / "adapter", base, r=4, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True
    )
    tokenizer = tiny_models.make_tokenizer()
    alone = generate_alone(
        tiny_models.load_reference(base, adapter), (*tokenizer(PROMPT).input_ids,)
    )
    assert alone.margin > MIN_MARGIN
    body = {"model": "acme/desk", "prompt": PROMPT, "max_tokens": NUM_TOKENS, "temperature": 0}

    with serving(data_dir, ["--model", str(base)]) as served:
        assert run_cli("tenant", "create", "acme", *at).returncode == 0
        key = json.loads(run_cli("key", "create", "acme", "--json", *at).stdout)["key"]
        pushed = run_cli("adapter", "push", "acme/desk", str(adapter), *at)
        assert pushed.returncode == 0, pushed.stderr
        reply = served.post(key, body, "/v1/completions")
        assert reply.json()["choices"][0]["text"] == tokenizer.decode(alone.tokens)
        assert served.stop() == 0

    shutil.rmtree(base)
    tiny_models.save_model(base, gpt2(width=32))
    with serving(data_dir, ["--model", str(base)]) as served:
        refused = served.post(key, body, "/v1/completions")
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "adapter_mismatch")
        assert "lora_A.weight is (4, 64)" in refused.json()["error"]["message"]
        assert served.post(key, {**body, "model": "tiny-gpt2"}, "/v1/completions").is_success
