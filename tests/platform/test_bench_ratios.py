"""What is made of the values of the engine's benchmark."""

from dataclasses import replace

import pytest

from loraplex.platform.bench.engine import EngineResult
from loraplex.platform.bench.floors import Work
from loraplex.platform.bench.machine import Machine
from loraplex.platform.bench.mixes import (
    FEWER,
    MIXES,
    WITH_LARGE,
    fit_ranks,
    mix_series,
    rank_sum,
)
from loraplex.platform.bench.ratios import ratios
from loraplex.platform.bench.report import as_json, tables
from loraplex.platform.bench.scale import ScaleFacts, scale_series
from loraplex.platform.bench.series import EnginePlan, Series
from loraplex.platform.bench.step_floors import GEMM, READ

Values = dict[Series, list[float]]


def result_of(values: Values, **more: object) -> EngineResult:
    return EngineResult(
        machine=Machine("cpu", 2, 1, "cpu", "2", "3", "float32", 0.5),
        plan=EnginePlan((16,), 8, 4, 3, 0, peers=(), with_profile=False),
        model="tiny",
        adapter_ranks=(8,),
        values=values,
        **more,
    )


def measured(values: Values, **more: object) -> dict[str, float]:
    return {k: v for k, v in ratios(result_of(values, **more)).items() if v is not None}


def decode(engine: str, case: str, *values: float) -> Values:
    return {Series("decode_tokens_per_s", engine, case, 16): [*values]}


def prefill(engine: str, case: str, *values: float) -> Values:
    return {Series("prefill_ms", engine, case, 16): [*values]}


def mixes(rate_ms: float, at_zero_ms: float) -> Values:
    return {mix_series(mix): [at_zero_ms + rate_ms * rank_sum(mix), 999.0] for mix in MIXES}


def test_ratios_are_medians_of_the_ratios_within_a_repetition() -> None:
    values = (
        decode("loraplex", "distinct", 40, 10, 90)
        | decode("loraplex", "identical", 80, 10, 90)
        | decode("loraplex", "base", 80, 40, 90)
        | decode("loraplex", "base_lora_off", 100, 40, 45)
        | decode("peft", "distinct", 10, 5, 10)
        | {
            Series("ttft_ms", "loraplex", "warm", 1, 8): [1.0, 2.0, 4.0],
            Series("ttft_ms", "loraplex", "cold", 1, 8): [3.0, 3.0, 8.0],
        }
    )
    assert measured(values) == {
        "decode_over_peft_16": 4,  # of 4, 2, 9
        "lora_over_base_16": 0.5,  # of 0.5, 0.25, 1
        "distinct_over_identical_16": 1,  # of 0.5, 1, 1
        "idle_tax": 1,  # of 0.8, 1, 2
        "cold_over_warm_ttft": 2,  # of 3, 1.5, 2
    }
    assert as_json(result_of(values)).keys() == {"machine", "run", "rows", "ratios"}


def test_a_peer_that_was_too_slow_for_all_repetitions_is_compared_in_those_it_had() -> None:
    values = (
        decode("loraplex", "distinct", 40, 10, 90)
        | decode("loraplex", "base", 40, 10, 90)
        | prefill("loraplex", "distinct", 2, 1, 1)
        | decode("vllm", "distinct", 10)
        | decode("vllm", "base", 80, 10)
        | prefill("vllm", "distinct", 50)
    )
    found = measured(values)
    assert found["decode_over_vllm_16"] == 4
    assert found["prefill_over_vllm_16"] == 25
    assert found["base_over_vllm_base_16"] == pytest.approx(0.75)  # of 0.5, 1


def test_steps_are_compared_with_what_the_machine_can_do_at_best() -> None:
    values = {
        READ: [5e9, 10e9],  # 100 MB take 10 ms
        GEMM: [1e9, 2e9],  # 40 MFLOP take 20 ms
        Series("step_ms", "loraplex", "long_base", 16): [90.0, 30.0],
        Series("step_ms", "loraplex", "long_distinct", 16): [42.0, 80.0],
        **prefill("loraplex", "long_base", 80, 90, 100),
        **prefill("loraplex", "long_distinct", 100, 100, 100),
    }
    base, lora = Work(100_000_000, 40_000_000), Work(100_000_000, 1_000_000)
    assert measured(values, base_work=base, lora_work=lora) == {
        "step_over_floor_16": 1.5,  # 30 ms ÷ 20, which computing takes
        "lora_extra_over_floor_16": pytest.approx(1.2),  # 12 ms more ÷ 10, which reading takes
        "prefill_lora_over_base_16": 0.9,
    }


def test_a_line_through_steps_by_the_sum_of_ranks_is_found() -> None:
    fit = fit_ranks(mixes(rate_ms=0.1, at_zero_ms=50.0))
    assert fit is not None
    assert fit.slope_ms == pytest.approx(0.1)
    assert fit.at_zero_ms == pytest.approx(50)
    assert fit.r_squared == pytest.approx(1)
    assert rank_sum(FEWER) not in fit.rank_sums  # of 15 requests


def test_one_large_rank_is_charged_with_what_others_wait_for_it() -> None:
    values = {mix_series(FEWER): [100.0, 200.0], mix_series(WITH_LARGE): [300.0, 125.0]}
    share = 128 / (15 * 8 + 128)
    assert measured(values) == {"r128_beside_r8": pytest.approx(0.25 / share)}


def test_many_registered_adapters_are_compared_with_five() -> None:
    values: Values = {scale_series(2000): [9.0, 8.0, 8.0], scale_series(5): [10.0, 10.0, 8.0]}
    assert measured(values) == {"scale_2000_over_5": 0.9}


def test_another_number_of_registered_adapters_has_a_ratio_that_no_name_hides() -> None:
    fewer: Values = {scale_series(12): [9.0], scale_series(5): [10.0]}
    assert measured(fewer) == {}
    result = result_of(fewer, scale=ScaleFacts(12, 1 << 20))
    assert as_json(result)["scale"]["over_5"] == pytest.approx(0.9)
    (title,) = [title for title, _ in tables(result) if title.startswith("Registered")]
    assert "0.90 of the throughput with 5 (scale_2000_over_5 is of 2000 alone)" in title


def test_tables_of_all_that_was_measured_can_be_written() -> None:
    long = {
        Series("step_ms", "loraplex", case, 16): [30.0] for case in ("long_base", "long_distinct")
    }
    few_rows = Series("gemm_flops_per_s", "machine", "few_rows", 16)
    plan = EnginePlan((), 8, 4, 3, 0, (), with_profile=False, with_floors=True, with_ranks=True)
    result = result_of(
        mixes(0.1, 50.0)
        | {READ: [1e9], GEMM: [1e9], few_rows: [1e9]}
        | long
        | {scale_series(5): [1.0]},
        base_work=Work(1, 1),
        lora_work=Work(1, 1),
        scale=ScaleFacts(2000, 1 << 20),
    )
    titles = [title for title, _ in tables(replace(result, plan=plan))]
    assert any("100.0 µs a rank, 50.0 ms at none, R² 1.000" in title for title in titles)
    assert "Floors" in titles
    assert as_json(result)["ranks"]
