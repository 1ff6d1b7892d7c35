"""Models that would be computed wrong are refused when they are loaded, and the reason is told."""

import json
import shutil
from pathlib import Path

import pytest
from tests import tiny_models
from tests.tiny_models import sizes
from transformers import (
    BartConfig,
    BertConfig,
    BloomConfig,
    DeepseekV3Config,
    DiffLlamaConfig,
    FalconConfig,
    Gemma3Config,
    GPTNeoXJapaneseConfig,
    GptOssConfig,
    Lfm2Config,
    Llama4TextConfig,
    MambaConfig,
    MptConfig,
    PreTrainedConfig,
    Qwen3NextConfig,
    RwkvConfig,
    T5Config,
)

from loraplex.engine.config import ModelConfig
from loraplex.engine.errors import ModelUnsupported
from loraplex.engine.gate import Declaration, check_declaration, max_model_len
from loraplex.engine.model import LoadedModel, load_model

OWN_ATTENTION = "does not go through transformers' attention interface"
PLAIN_ROPE = {"rope_type": "default", "rope_theta": 1e4}
# Refused by their config, so their weights are never looked at.
BY_CONFIG = {
    "an encoder with a decoder": (T5Config(), r"\(t5\).* no causal language model"),
    "a decoder with cross-attention": (BartConfig(), r"\(bart\).*cross-attention"),
    "a state space": (MambaConfig(), r"\(mamba\).*layers of type linear_attention"),
    "linear attention": (Qwen3NextConfig(), r"\(qwen3_next\).*layers of type linear_attention"),
    "convolutions": (
        Lfm2Config(layer_types=["conv", "full_attention"], num_hidden_layers=2),
        r"\(lfm2\).*layers of type conv",
    ),
    "chunks that attention does not cross": (
        Llama4TextConfig(),
        r"\(llama4_text\).*layers of type chunked_attention",
    ),
    "images": (Gemma3Config(), r"\(gemma3\).*several models \(text_config, vision_config\)"),
    "frequencies that the longest request chooses": (
        tiny_models.llama_config(
            rope_parameters={**PLAIN_ROPE, "rope_type": "dynamic", "factor": 2}
        ),
        r"\(llama\).*rope_type is 'dynamic'.*one tenant's request would change another's",
    ),
}
BY_PROBE = {
    "later tokens": (BertConfig(**sizes()), "BertSelfAttention is not causal"),
    "ALiBi in BLOOM": (BloomConfig(**sizes(n_layer=2, n_head=4)), OWN_ATTENTION),
    "ALiBi in Falcon": (FalconConfig(**sizes(alibi=True)), OWN_ATTENTION),
    "ALiBi in MPT": (MptConfig(**sizes(d_model=64, n_heads=4, n_layers=2)), OWN_ATTENTION),
    "a recurrent state": (RwkvConfig(**sizes()), OWN_ATTENTION),
    "attention of its own": (
        GPTNeoXJapaneseConfig(**sizes(intermediate_multiple_size=2)),
        OWN_ATTENTION,
    ),
    "two attentions a layer": (
        DiffLlamaConfig(**sizes()),
        r"ran attention 6 times, in layers \[0, 0, 1, 1, 2, 2\], not once in each",
    ),
    "sinks": (
        GptOssConfig(**sizes(num_local_experts=4, num_experts_per_tok=2, head_dim=16)),
        r"\(gpt_oss\).*GptOssAttention needs attention with attention sinks \(s_aux\)",
    ),
}


def load(folder: Path, dtype: str = "float32") -> LoadedModel:
    return load_model(ModelConfig(folder, "tiny", "cpu", dtype))


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "llama"
    return tiny_models.save_model(folder, tiny_models.llama_config())


@pytest.fixture
def spoil(llama: Path, tmp_path: Path) -> Path:
    """A copy of a good model, whose config is to be changed."""
    return Path(shutil.copytree(llama, tmp_path / "spoilt"))


def change_config(folder: Path, **changes: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


@pytest.mark.parametrize("kind", BY_CONFIG)
def test_a_model_is_refused_for_what_its_config_says(kind: str, tmp_path: Path) -> None:
    config, reason = BY_CONFIG[kind]
    config.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").touch()  # never read
    with pytest.raises(ModelUnsupported, match=reason):
        load(tmp_path)


@pytest.mark.parametrize("kind", BY_PROBE)
def test_a_model_is_refused_for_what_its_forward_pass_does(
    kind: str, tmp_path: Path, llama: Path
) -> None:
    config, reason = BY_PROBE[kind]
    folder = tiny_models.save_model(tmp_path / "model", config)
    with pytest.raises(ModelUnsupported, match=reason):
        load(folder)
    assert load(llama).vocab_size == 320  # the process goes on


def test_quantised_weights_are_refused(spoil: Path) -> None:
    change_config(spoil, quantization_config={"quant_method": "gptq", "bits": 4})
    with pytest.raises(ModelUnsupported, match=r"\(llama\).*its weights are quantised \(gptq\)"):
        load(spoil)


def test_code_of_a_models_folder_is_never_run(spoil: Path) -> None:
    change_config(spoil, model_type="acme", auto_map={"AutoModelForCausalLM": "modeling.Acme"})
    (spoil / "modeling.py").write_text("raise SystemExit('it ran')")
    with pytest.raises(ModelUnsupported, match=r"\(acme\).*code from its own folder \(auto_map\)"):
        load(spoil)


def test_a_model_that_transformers_does_not_have_is_named(spoil: Path) -> None:
    change_config(spoil, model_type="acme")
    with pytest.raises(ModelUnsupported, match="'acme', which this version of transformers"):
        load(spoil)


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_config_that_cannot_be_read_is_named(spoil: Path, text: str) -> None:
    (spoil / "config.json").write_text(text)
    with pytest.raises(ModelUnsupported, match=r"its config\.json"):
        load(spoil)


@pytest.mark.parametrize(
    ("saved", "computed"), [("bfloat16", "bfloat16"), ("float16", "float16"), (None, "float32")]
)
def test_auto_takes_the_dtype_of_the_checkpoint(
    spoil: Path, saved: str | None, computed: str
) -> None:
    change_config(spoil, dtype=saved)
    model = load(spoil, "auto")
    assert (model.config.dtype, str(model.dtype)) == (computed, f"torch.{computed}")


def test_auto_refuses_a_dtype_that_is_not_served(spoil: Path) -> None:
    change_config(spoil, dtype="float64")
    with pytest.raises(ModelUnsupported, match="its dtype is float64; set one of float32"):
        load(spoil, "auto")


def test_an_attention_that_never_hears_of_the_models_soft_cap_is_refused(
    tmp_path: Path,
) -> None:
    config = tiny_models.llama_config(attn_logit_softcapping=5.0)  # Llama does not pass it on
    folder = tiny_models.save_model(tmp_path, config)
    with pytest.raises(ModelUnsupported, match=r"attention soft cap of 5\.0, but its layers pass"):
        load(folder)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear", "factor": 4.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        {
            "rope_type": "llama3",
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ],
    ids=lambda rope: rope["rope_type"],
)
def test_frequencies_that_depend_on_positions_alone_are_served(
    tmp_path: Path, rope: dict[str, object]
) -> None:
    config = tiny_models.llama_config(rope_parameters={**PLAIN_ROPE, **rope})
    assert load(tiny_models.save_model(tmp_path, config)).max_model_len == 256


def declaration(**changes: object) -> Declaration:
    values = {
        "num_layers": 2,
        "layer_types": (),
        "ropes": (PLAIN_ROPE,),
        "max_positions": 64,
        "has_cross_attention": False,
    }
    return Declaration(**(values | changes))


def test_one_rotary_embedding_of_several_is_enough_to_refuse() -> None:
    dynamic = {"rope_type": "dynamic", "factor": 2.0}
    with pytest.raises(ModelUnsupported, match="dynamic"):
        check_declaration(declaration(ropes=(PLAIN_ROPE, dynamic)))


def test_a_model_without_a_limit_of_positions_needs_one_that_is_set() -> None:
    boundless = declaration(max_positions=None)
    assert max_model_len(boundless, 100) == 100
    with pytest.raises(ModelUnsupported, match="set max_model_len"):
        max_model_len(boundless, None)


def test_keys_and_values_may_differ_in_width(tmp_path: Path) -> None:
    config: PreTrainedConfig = DeepseekV3Config(
        **sizes(
            num_key_value_heads=4,
            q_lora_rank=16,
            kv_lora_rank=16,
            qk_rope_head_dim=8,
            qk_nope_head_dim=16,
            v_head_dim=16,
            n_routed_experts=4,
            num_experts_per_tok=2,
            n_group=1,
            topk_group=1,
            moe_intermediate_size=32,
        )
    )
    layer = load(tiny_models.save_model(tmp_path, config)).layers[0]
    assert (layer.key_dim, layer.value_dim) == (24, 16)
