"""An adapter with more tokens than the base model, from its upload to its requests."""

from pathlib import Path

import numpy as np
import pytest
from tests.adapters import build
from tests.adapters.build import Q0, Q1
from tests.platform.conftest import Gateway, error_of
from tests.platform.tiny_model import model_info
from tokenizers import AddedToken, Tokenizer

from loraplex.adapters.checkpoint import CONFIG_FILE, TENSORS_FILE
from loraplex.engine.protocol import LinearShapes

BASE_TOKENS, TOKENS = 320, 322
EMBEDDING = "model.embed_tokens"


@pytest.fixture
def base_model(gateway: Gateway) -> None:
    """Serve a model whose embedding and head are one, and as long as its vocabulary."""
    table = (BASE_TOKENS, build.IN)
    gateway.engine.model_info = model_info(
        shapes=LinearShapes(
            linears={Q0: (build.OUT, build.IN), Q1: (build.OUT, build.IN), "lm_head": table},
            embeddings={EMBEDDING: table},
            heads=("lm_head",),
            token_embedding=EMBEDDING,
            is_tied=True,
        )
    )


def parts(folder: Path, tokenizer_json: bytes | None = None) -> dict[str, tuple[str, bytes]]:
    """Files of an adapter of a vocabulary that was extended."""
    table = np.zeros((TOKENS, build.IN), np.float32)
    build.save(folder, content=build.tensors() | {f"base_model.model.{EMBEDDING}.weight": table})
    files = {n: (n, (folder / n).read_bytes()) for n in (CONFIG_FILE, TENSORS_FILE)}
    if tokenizer_json is not None:
        files["tokenizer.json"] = ("tokenizer.json", tokenizer_json)
    return files


def extended(num_tokens: int) -> bytes:
    tokenizer = Tokenizer.from_str(model_info().tokenizer_json.decode())
    missing = num_tokens - tokenizer.get_vocab_size()
    tokenizer.add_special_tokens([AddedToken(f"<own{i}>", special=True) for i in range(missing)])
    return tokenizer.to_str().encode()


async def upload(gateway: Gateway, files: dict[str, tuple[str, bytes]]) -> object:
    return await gateway.client.post("/v1/adapters", data={"name": "mine"}, files=files)


@pytest.mark.usefixtures("base_model")
async def test_its_requests_may_name_its_tokens_and_those_of_others_may_not(
    gateway: Gateway, tmp_path: Path
) -> None:
    made = await upload(gateway, parts(tmp_path / "a", extended(TOKENS)))
    assert made.status_code == 201, made.text
    own = {"prompt": [5, TOKENS - 1], "logit_bias": {str(TOKENS - 1): 2.0}}
    assert (await gateway.complete(model="acme/mine", **own)).status_code == 200
    submit = await gateway.engine.submitted()
    assert submit.prompt == (5, TOKENS - 1)
    assert submit.sampling.logit_bias == ((TOKENS - 1, 2.0),)
    beyond = await gateway.complete(model="acme/mine", prompt=[5, TOKENS])
    assert beyond.status_code == 400
    assert f"0 to {TOKENS - 1}" in error_of(beyond)["message"]
    others = await gateway.complete(model="tiny", prompt=[5, TOKENS - 1])
    assert others.status_code == 400


@pytest.mark.usefixtures("base_model")
async def test_its_tokens_must_have_names(gateway: Gateway, tmp_path: Path) -> None:
    response = await upload(gateway, parts(tmp_path / "a"))
    assert response.status_code == 400
    assert "tokenizer.json" in response.text
    assert "upload the tokenizer" in response.text


@pytest.mark.usefixtures("base_model")
async def test_its_tokenizer_may_not_name_more_tokens_than_it_has(
    gateway: Gateway, tmp_path: Path
) -> None:
    response = await upload(gateway, parts(tmp_path / "a", extended(TOKENS + 1)))
    assert response.status_code == 400
    assert f"below {TOKENS}" in response.text
