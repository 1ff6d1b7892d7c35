"""Pairs lie in one tensor, and are those of the file whatever that looks like."""

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.adapters import build

from loraplex.adapters.base_shapes import BaseShapes
from loraplex.adapters.checkpoint import CONFIG_FILE, TENSORS_FILE, compute_digest
from loraplex.adapters.errors import AdapterCorrupt, AdapterMismatch
from loraplex.adapters.load_progress import LoadProgress
from loraplex.adapters.outline import Outlines
from loraplex.adapters.packed_pairs import PackedPairs
from loraplex.adapters.placement import place
from loraplex.adapters.weights import VerifiedAdapter, read

KINDS = MappingProxyType({"q_proj": (3, 4), "up_proj": (5, 2)})
NUM_LAYERS = 12
PATHS = tuple(f"model.layers.{n}.{kind}" for n in range(NUM_LAYERS) for kind in KINDS)
BASE = BaseShapes(
    MappingProxyType({path: KINDS[path.rpartition(".")[2]] for path in PATHS}),
    MappingProxyType({}),
    frozenset(),
)
ITEM_BYTES = {"F32": 4, "F16": 2}


class OneFolder:
    """A store of one version."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self, _: str) -> Path:
        return self._folder


class NoWeights:
    """Of a base of which none is asked for."""


def write(folder: Path, ranks: dict[str, int], dtypes: list[str], order: Callable[[str], object]):
    """An adapter whose tensors lie in some order; return its pairs as float32 by path."""
    shapes = {}
    for path, rank in ranks.items():
        out, width = BASE.linears[path]
        shapes[f"base_model.model.{path}.lora_A.weight"] = (rank, width)
        shapes[f"base_model.model.{path}.lora_B.weight"] = (out, rank)
    random, header, data, held = np.random.default_rng(0), {}, b"", {}
    for number, name in enumerate(sorted(shapes, key=order)):
        dtype = dtypes[number % len(dtypes)]
        values = random.standard_normal(shapes[name]).astype(f"<f{ITEM_BYTES[dtype]}")
        end = len(data) + values.nbytes
        header[name] = {"dtype": dtype, "shape": shapes[name], "data_offsets": [len(data), end]}
        data += values.tobytes()
        held[name] = torch.from_numpy(values.astype(np.float32))
    text = json.dumps(header).encode()
    (folder / TENSORS_FILE).write_bytes(len(text).to_bytes(8, "little") + text + data)
    rules = {f".*{path.replace('.', '[.]')}": rank for path, rank in ranks.items()}
    config = {"target_modules": list(ranks), "rank_pattern": rules}
    (folder / CONFIG_FILE).write_text(json.dumps({**build.CONFIG, **config}))
    return held


def read_folder(folder: Path, outlines: Outlines | None = None, **how: bool) -> VerifiedAdapter:
    digest = compute_digest(folder)
    return read(OneFolder(folder), digest, BASE, NoWeights(), outlines=outlines, **how)  # type: ignore[arg-type]  # all that is read of either


@given(
    ranks=st.dictionaries(st.sampled_from(PATHS), st.integers(1, 3), min_size=1),
    dtypes=st.sampled_from([["F32"], ["F16"], ["F16", "F16", "F32"]]),
    seed=st.integers(0, 9),
    transposes_b=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_what_is_placed_are_the_file_s_pairs_in_any_order_and_dtype(
    tmp_path_factory: pytest.TempPathFactory,
    ranks: dict[str, int],
    dtypes: list[str],
    seed: int,
    *,
    transposes_b: bool,
) -> None:
    folder = tmp_path_factory.mktemp("adapter")
    held = write(
        folder, ranks, dtypes, lambda name: zlib.crc32(f"{name} {seed}".encode()) if seed else name
    )
    found = read_folder(folder, transposes_b=transposes_b)
    placed = place(found, dtype=torch.float32, device="cpu")
    assert placed.pairs.keys() == ranks.keys()
    for path, pair in placed.pairs.items():
        assert torch.equal(pair.a, held[f"base_model.model.{path}.lora_A.weight"])
        assert torch.equal(pair.b, held[f"base_model.model.{path}.lora_B.weight"])
        assert pair.a.is_contiguous()
    if isinstance(placed.pairs, PackedPairs) and transposes_b:
        assert all(pair.b.T.is_contiguous() for pair in placed.pairs.values())
    exact = sum(p.a.nbytes + p.b.nbytes for p in placed.pairs.values())
    assert placed.num_bytes == exact


def test_an_adapter_of_one_dtype_moves_in_a_few_pieces_however_many_layers_it_has(
    tmp_path: Path,
) -> None:
    write(tmp_path, dict.fromkeys(PATHS, 2), ["F32"], str)
    found = read_folder(tmp_path)
    assert len(found.pairs) == len(PATHS)
    assert not found.modules
    assert len(found.outline.pairs.runs) == 2 * len(KINDS)
    paced: list[int] = []
    progress = LoadProgress(paced.append)
    placed = place(found, dtype=torch.float32, device="cpu", progress=progress)
    assert progress.num_layers == progress.of_layers == len(paced) == NUM_LAYERS
    assert sum(paced) == placed.pairs.data.nbytes


def test_what_is_placed_and_what_the_host_keeps_are_memory_apart(tmp_path: Path) -> None:
    write(tmp_path, dict.fromkeys(PATHS, 2), ["F32"], str)
    found = read_folder(tmp_path)
    placed = place(found, dtype=torch.float32, device="cpu")
    assert isinstance(placed.pairs, PackedPairs)
    assert placed.pairs.data.data_ptr() != found.pairs.data.data_ptr()
    found.pairs.data.zero_()
    assert all(pair.a.any() for pair in placed.pairs.values())


def test_adapters_of_one_recipe_share_an_outline_and_none_of_their_numbers(tmp_path: Path) -> None:
    outlines, found = Outlines(), []
    for seed in (1, 2):
        folder = build.save(tmp_path / str(seed), content=build.pair(build.Q0, seed=seed))
        (folder / CONFIG_FILE).write_text(
            json.dumps({**build.CONFIG, "target_modules": ["0.self_attn.q_proj"]})
        )
        args = compute_digest(folder), build.base(), NoWeights()
        found.append(read(OneFolder(folder), *args, outlines=outlines))  # type: ignore[arg-type]  # all that is read of either
    first, second = found
    assert first.outline is second.outline
    assert not torch.equal(first.pairs.data, second.pairs.data)


def test_another_config_of_the_same_tensors_has_an_outline_of_its_own(tmp_path: Path) -> None:
    outlines, scales = Outlines(), []
    for alpha in (1, 2):
        folder = build.save(tmp_path / str(alpha), {"lora_alpha": alpha})
        args = compute_digest(folder), build.base(), NoWeights()
        found = read(OneFolder(folder), *args, outlines=outlines)  # type: ignore[arg-type]  # all that is read of either
        scales.append(found.pairs[build.Q0].scale)
    assert scales == [0.5, 1.0]


def test_a_known_outline_spares_no_adapter_its_own_checks(tmp_path: Path) -> None:
    outlines = Outlines()
    write(tmp_path, dict.fromkeys(PATHS, 2), ["F32"], str)
    read_folder(tmp_path, outlines)
    digest = compute_digest(tmp_path)
    path = tmp_path / TENSORS_FILE
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(AdapterCorrupt, match=digest):
        read(OneFolder(tmp_path), digest, BASE, NoWeights(), outlines=outlines)  # type: ignore[arg-type]  # all that is read of either
    path.write_bytes(data[:-4])
    with pytest.raises(AdapterCorrupt, match="truncated"):
        read(OneFolder(tmp_path), digest, BASE, NoWeights(), outlines=outlines)  # type: ignore[arg-type]  # all that is read of either


def test_a_misfit_names_each_adapter_that_shares_it(tmp_path: Path) -> None:
    outlines = Outlines()
    for seed in (1, 2):
        folder = build.save(tmp_path / str(seed), content=build.pair(build.Q0, seed=seed))
        digest = compute_digest(folder)
        with pytest.raises(AdapterMismatch, match=digest):
            read(OneFolder(folder), digest, build.base(), NoWeights(), outlines=outlines)  # type: ignore[arg-type]  # all that is read of either
