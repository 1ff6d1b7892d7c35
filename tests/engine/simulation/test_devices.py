from pathlib import Path

import pytest

from loraplex.engine.cost import CostModel, Subject
from loraplex.engine.cost_features import Row, StepFeatures
from loraplex.engine.simulation.devices import read_device
from loraplex.engine.simulation.errors import ProfileInvalid

OPERATIONS = ("attn_pre_proj", "mlp_up_proj")


def table(tmp_path: Path, name: str = "vidur_a100_tiny.csv", width: int = 4096) -> Path:
    header = ["n_head", "n_kv_head", "n_embd", "n_expanded_embd", "num_tokens"]
    header += ["num_tensor_parallel_workers", *(f"time_stats.{o}.median" for o in OPERATIONS)]
    lines = [",".join(header)]
    for num_tokens, ms in ((8, 0.1), (128, 0.2), (136, 0.4)):
        lines.append(f"32,32,{width},11008,{num_tokens},1,{ms},{ms}")
        lines.append(f"32,32,{width},11008,{num_tokens},2,9,9")
    path = tmp_path / name
    path.write_text("\n".join(lines))
    return path


def prefill(num_tokens: int) -> StepFeatures:
    return StepFeatures.of([Row(num_tokens, 0, 0.0, is_decode=False)])


def test_a_table_gives_the_measured_time_of_the_next_number_of_tokens(tmp_path: Path) -> None:
    times = read_device(str(table(tmp_path))).times
    assert times.step_ms(prefill(128)) - times.step_ms(prefill(100)) < 0.1
    assert times.step_ms(prefill(129)) - times.step_ms(prefill(128)) == pytest.approx(
        0.4 * 32, rel=0.05
    )


def test_context_and_adapters_take_time_by_their_bytes(tmp_path: Path) -> None:
    device = read_device(str(table(tmp_path)))
    short, long = (StepFeatures.of([Row(1, context, 0.0, is_decode=True)]) for context in (0, 1000))
    # 1,000 tokens of 0.5 MiB at 1.3 TB/s.
    assert device.times.step_ms(long) - device.times.step_ms(short) == pytest.approx(
        0.403, rel=0.01
    )
    assert device.bytes_per_rank == 2 * 32 * (4 * 8192 + 3 * 15104)


def test_a_saved_cost_model_is_a_profile(tmp_path: Path) -> None:
    model = CostModel(Subject("m", "d"))
    for i in range(200):
        step = prefill(10 + i)
        model.observe(step, 5 + 0.1 * step.num_tokens)
    path = tmp_path / "costs.json"
    path.write_bytes(model.to_json())
    device = read_device(str(path))
    assert device.name == "m on d"
    assert device.times.step_ms(prefill(100)) == pytest.approx(15, rel=0.1)


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("vidur_tpu.csv", "", "must hold one of a100"),
        ("vidur_a100.csv", "a,b\n1,2\n", "not a table"),
        ("costs.json", "{}", "no saved cost model"),
    ],
)
def test_what_is_no_profile_is_refused(tmp_path: Path, name: str, content: str, told: str) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(ProfileInvalid, match=told):
        read_device(str(path))


def test_a_model_of_unknown_shape_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProfileInvalid, match="known here"):
        read_device(str(table(tmp_path, width=64)))


def test_an_unknown_name_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(ProfileInvalid, match="a10g-llama2-7b"):
        read_device("b200")
