"""A model as gateways see it: a small byte-level tokenizer, a chat template, and nothing else."""

from functools import cache

from tests.adapters.build import base
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from loraplex.engine.protocol import LinearShapes, ModelInfo

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIALS = ["<|bos|>", "<|im_start|>", "<|im_end|>"]
CORPUS = ["the quick brown fox jumps over the lazy dog", "user system assistant hello world"]


@cache
def tokenizer_json() -> bytes:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=320,
            special_tokens=SPECIALS,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|bos|> $A", special_tokens=[("<|bos|>", 0)]
    )
    return tokenizer.to_str().encode()


def model_info(**changes: object) -> ModelInfo:
    values = {
        "name": "tiny",
        "max_model_len": 256,
        "vocab_size": 320,
        "tokenizer_json": tokenizer_json(),
        "chat_template": CHAT_TEMPLATE,
        "special_tokens": {"bos_token": "<|bos|>", "eos_token": "<|im_end|>"},
        "dtype": "float32",
        "device": "cpu",
        "shapes": LinearShapes(
            linears=dict(base().linears),
            embeddings=dict(base().embeddings),
            heads=tuple(base().heads),
        ),
    }
    return ModelInfo(**(values | changes))
