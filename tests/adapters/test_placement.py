"""An adapter comes to the device layer by layer, into memory of its own."""

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.adapters import build, kinds
from tests.adapters.test_packed_pairs import NUM_LAYERS, PATHS, NoWeights, OneFolder, write
from tests.adapters.test_packed_pairs import read_folder as read_packed

from loraplex.adapters.base_shapes import BaseShapes
from loraplex.adapters.checkpoint import CONFIG_FILE, compute_digest
from loraplex.adapters.effects import LoraPair
from loraplex.adapters.load_progress import LoadProgress
from loraplex.adapters.placement import EarlyAdapter, place
from loraplex.adapters.weights import AdapterWeights, VerifiedAdapter, read

HEAD = "lm_head"


class Weights:
    """Of the base on which the adapters were made."""

    def __init__(self, base: BaseShapes) -> None:
        self._base = base

    def weight(self, path: str) -> torch.Tensor:
        shape = self._base.linears.get(path) or self._base.embeddings[path]
        return torch.from_numpy(kinds.tensor(*shape))

    def bias(self, path: str) -> torch.Tensor | None:
        return torch.zeros(self._base.biases[path]) if path in self._base.biases else None

    def is_transposed(self, _: str) -> bool:
        return False


class Watched(LoadProgress):
    """Looks at what is there after each layer."""

    def __init__(self, look: Callable[["Watched"], None]) -> None:
        self.paced: list[int] = []
        super().__init__(self.paced.append)
        self._look = look

    def open(self, of_layers: int, early: object) -> None:
        super().open(of_layers, early)
        self._look(self)

    def add_layer(self) -> None:
        super().add_layer()
        self._look(self)


def is_whole(pair: LoraPair) -> bool:
    return not (pair.a.isnan().any() or pair.b.isnan().any())


def is_nothing(pair: LoraPair) -> bool:
    return bool(pair.a.isnan().all() and pair.b.isnan().all())


def layer_number(path: str) -> int:
    return int(path.split(".")[2])


def of_kind(folder: Path, config: dict[str, object], tensors: dict[str, object]) -> VerifiedAdapter:
    build.save(folder, config, {**build.tensors(), **tensors})
    base = kinds.TIED
    return read(OneFolder(folder), compute_digest(folder), base, Weights(base))  # type: ignore[arg-type]  # all that is read of it


@given(
    ranks=st.dictionaries(st.sampled_from(PATHS), st.integers(1, 3), min_size=1),
    seed=st.integers(0, 99),
)
@settings(max_examples=40, deadline=None)
def test_layers_come_in_the_order_of_the_model_and_what_has_not_come_is_nan(
    tmp_path_factory: pytest.TempPathFactory, ranks: dict[str, int], seed: int
) -> None:
    folder = tmp_path_factory.mktemp("adapter")
    shuffled = random.Random(seed)
    write(folder, ranks, ["F32"], lambda _: shuffled.random())
    found = read_packed(folder)
    touched = sorted({layer_number(path) for path in ranks})

    def look(progress: Watched) -> None:
        early = progress.early
        assert isinstance(early, EarlyAdapter)
        assert early.host is found
        assert progress.of_layers == len(touched)
        for path, pair in early.weights.pairs.items():
            number = touched.index(layer_number(path))
            assert early.layer_of[path] == number
            assert (is_whole if number < progress.num_layers else is_nothing)(pair)

    progress = Watched(look)
    placed = place(found, dtype=torch.float32, device="cpu", progress=progress)
    assert placed is progress.early.weights
    assert progress.num_layers == len(progress.paced) == len(touched)


def test_a_head_comes_last_wherever_the_file_has_it(tmp_path: Path) -> None:
    config, tensors = kinds.WITH_HEAD, kinds.HEAD_PAIR
    found = of_kind(tmp_path, dict(config), tensors)
    assert [layer.paths for layer in found.outline.pairs.layers] == [
        (build.Q0,),
        (build.Q1,),
        (HEAD,),
    ]
    progress = LoadProgress()
    place(found, dtype=torch.float32, device="cpu", progress=progress)
    assert progress.early.layer_of == {build.Q0: 0, build.Q1: 1, HEAD: 2}


def test_an_embedding_comes_first_and_a_norm_last(tmp_path: Path) -> None:
    for number, (config, tensors) in enumerate(
        ((kinds.BOTH, kinds.EMBEDDED), ({"bias": "all"}, kinds.ALL_BIASES))
    ):
        found = of_kind(tmp_path / str(number), dict(config), tensors)
        first, *_, last = (layer.paths for layer in found.outline.pairs.layers)
        assert (kinds.EMBEDDING in first) is (number == 0)
        assert ("model.norm" in last) is (number == 1)


@pytest.mark.parametrize(("config", "tensors"), kinds.VALID)
def test_what_is_more_than_pairs_is_never_used_before_it_is_whole(
    tmp_path: Path, config: dict[str, object], tensors: dict[str, object]
) -> None:
    found = of_kind(tmp_path, dict(config), tensors)
    progress = LoadProgress()
    place(found, dtype=torch.float32, device="cpu", progress=progress)
    assert (progress.early is None) is bool(found.modules)
    assert progress.num_layers == progress.of_layers == len(found.outline.pairs.layers)


@pytest.mark.parametrize(("config", "tensors"), kinds.VALID)
def test_the_bytes_that_are_paced_are_those_of_the_device(
    tmp_path: Path, config: dict[str, object], tensors: dict[str, object]
) -> None:
    found = of_kind(tmp_path, dict(config), tensors)
    paced: list[int] = []
    placed = place(found, dtype=torch.float32, device="cpu", progress=LoadProgress(paced.append))
    # Places are aligned, and ids of tokens take 8 bytes; it is a throttle's measure, no more.
    padding = 4 * 16 * 2 * len(found.pairs)
    assert placed.num_bytes - 64 <= sum(paced) <= placed.num_bytes + padding


@pytest.mark.parametrize(("config", "tensors"), kinds.VALID)
def test_what_is_placed_reads_nothing_of_the_host_s_copy(
    tmp_path: Path, config: dict[str, object], tensors: dict[str, object]
) -> None:
    found = of_kind(tmp_path, dict(config), tensors)
    placed = place(found, dtype=torch.float32, device="cpu")
    before = [tensor.clone() for tensor in all_of(placed)]
    found.pairs.data.fill_(torch.nan)
    for module in found.modules.values():
        for tensor in module.tensors():
            tensor.fill_(torch.nan if tensor.is_floating_point() else -1)
    assert before
    assert all(torch.equal(old, new) for old, new in zip(before, all_of(placed), strict=True))


def all_of(placed: AdapterWeights) -> list[torch.Tensor]:
    low_rank = [*placed.pairs.values(), *placed.parameters.values()]
    parts = [part for of in low_rank for part in (of.a, of.b)]
    return parts + [part for effect in placed.effects.values() for part in effect.tensors()]


def test_a_copy_that_fails_halfway_leaves_what_has_not_come_nan(tmp_path: Path) -> None:
    write(tmp_path, dict.fromkeys(PATHS, 2), ["F32"], str)
    found = read_packed(tmp_path)
    left = iter(range(5))

    def pace(_: int) -> None:
        if next(left, None) is None:
            raise OSError("the link is gone")

    progress = LoadProgress(pace)
    with pytest.raises(OSError, match="gone"):
        place(found, dtype=torch.float32, device="cpu", progress=progress)
    assert (progress.num_layers, progress.of_layers) == (5, NUM_LAYERS)
    for path, pair in progress.early.weights.pairs.items():
        assert (is_whole if layer_number(path) < 5 else is_nothing)(pair)


def test_pairs_that_kernels_want_otherwise_are_used_as_a_whole(tmp_path: Path) -> None:
    write(tmp_path, dict.fromkeys(PATHS, 2), ["F32"], str)
    found = read_packed(tmp_path)
    seen: list[bool] = []

    def otherwise(weights: AdapterWeights) -> AdapterWeights:
        seen.append(all(map(is_whole, weights.pairs.values())))
        made = {path: replace(pair, b=pair.b.clone()) for path, pair in weights.pairs.items()}
        return replace(weights, pairs=made)

    progress = LoadProgress()
    placed = place(found, dtype=torch.float32, device="cpu", progress=progress, prepare=otherwise)
    assert progress.early is None
    assert seen == [False, True]
    assert all(map(is_whole, placed.pairs.values()))


def test_who_can_use_layers_is_told_of_each_and_nobody_of_what_is_used_as_a_whole(
    tmp_path: Path,
) -> None:
    told: list[int] = []
    for number, dtypes in enumerate((["F32"], ["F32", "F16"])):
        folder = tmp_path / str(number)
        folder.mkdir()
        write(folder, dict.fromkeys(PATHS, 2), dtypes, str)
        progress = LoadProgress(on_usable=lambda: told.append(0))
        place(read_packed(folder), dtype=torch.float32, device="cpu", progress=progress)
        assert len(told) == 1 + NUM_LAYERS


def test_an_adapter_of_nothing_but_a_config_has_no_layers(tmp_path: Path) -> None:
    folder = build.save(tmp_path, content=build.pair(build.Q0))
    (folder / CONFIG_FILE).write_text(
        json.dumps({**build.CONFIG, "target_modules": ["0.self_attn.q_proj"]})
    )
    digest = compute_digest(folder)
    found = read(OneFolder(folder), digest, build.base(), NoWeights())  # type: ignore[arg-type]  # all that is read of either
    progress = LoadProgress()
    place(found, dtype=torch.float32, device="cpu", progress=progress)
    assert progress.early.layer_of == {build.Q0: 0}
