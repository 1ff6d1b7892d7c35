from dataclasses import replace
from pathlib import Path

import pytest

from loraplex.engine.simulation.errors import TraceInvalid
from loraplex.engine.simulation.traces import TraceRequest, read_trace

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,3,9
2023-11-16 18:15:47.1805900,7,2
"""
MOONCAKE = """{"timestamp": 0, "input_length": 3, "output_length": 9, "hash_ids": [0]}
{"timestamp": 500, "input_length": 7, "output_length": 2, "hash_ids": [0]}
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "trace"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "tenants"),
    [
        ("arrival_s,client,input_tokens,output_tokens\n5,a,7,2\n4.5,b,3,9\n", ("b", "a")),
        ("arrival_s,tenant,input_tokens,output_tokens\n5,a,7,2\n4.5,b,3,9\n", ("b", "a")),
        (
            AZURE,
            ("azure", "azure"),
        ),
        (
            MOONCAKE,
            ("mooncake", "mooncake"),
        ),
    ],
    ids=["vtc", "servegen", "azure", "mooncake"],
)
def test_each_kind_is_known_by_its_first_line_sorted_and_begins_at_zero(
    tmp_path: Path, text: str, tenants: tuple[str, str]
) -> None:
    first, second = read_trace(written(tmp_path, text))
    assert replace(first, hash_ids=()) == TraceRequest(0.0, tenants[0], 3, 9)
    assert second.arrival_s == pytest.approx(0.5, abs=1e-6)
    assert (second.tenant, second.prompt_tokens, second.output_tokens) == (tenants[1], 7, 2)


def test_requests_without_prompt_or_output_are_left_out(tmp_path: Path) -> None:
    text = "arrival_s,client,input_tokens,output_tokens\n0,a,0,2\n1,a,3,0\n2,a,3,4\n"
    assert [r.prompt_tokens for r in read_trace(written(tmp_path, text))] == [3]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "header of no known kind"),
        ("a,b\n1,2\n", "'a,b'"),
        ("arrival_s,client,input_tokens,output_tokens\n", "holds no request"),
        ("arrival_s,client,input_tokens,output_tokens\n0,a,1,1\nx,a,3,4\n", "after the first 1 "),
        (
            "arrival_s,client,input_tokens,output_tokens\n0,a,1,1\n1e300,a,3,4\n",
            "it arrives at 1e.300 s",
        ),
        (
            "arrival_s,client,input_tokens,output_tokens\n0,a,1,999999999\n",
            "its output is 999999999",
        ),
        ('{"timestamp": 0, "input_length": 1.5, "output_length": 1, "hash_ids": []}\n', "is 1.5"),
        ('{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [{}]}\n', "hash_ids"),
        ('{"timestamp": ' + "[" * 100_000, "after the first 0 "),
        (
            "arrival_s,client,input_tokens,output_tokens\n0,a,1,1\nnan,a,3,4\n",
            "it arrives at nan s",
        ),
        ("arrival_s,client,input_tokens,output_tokens\n0,a\n", "after the first 0 "),
        ('{"timestamp": 0}\n', "after the first 0 "),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_place(
    tmp_path: Path, text: str, told: str
) -> None:
    with pytest.raises(TraceInvalid, match=told):
        read_trace(written(tmp_path, text))


def test_a_missing_file_is_refused_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(TraceInvalid, match="nowhere"):
        read_trace(tmp_path / "nowhere")
