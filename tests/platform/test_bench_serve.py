"""Load over HTTP on a gateway in this process, and what is refused."""

import asyncio
import json
from pathlib import Path

import httpx
import pytest
from click.testing import Result
from tests.platform.conftest import Gateway
from tests.platform.scripted_engine import ScriptedEngine, says
from typer.testing import CliRunner

from loraplex.platform.cli.bench import app
from loraplex.platform.load.arrivals import Arrival
from loraplex.platform.load.client import Target, probe
from loraplex.platform.load.errors import LoadRefused
from loraplex.platform.load.outcome import Outcome
from loraplex.platform.load.run import Bounds, check_url, new_client, run_load
from loraplex.platform.load.summary import Slo, summarise_run

SUMMARY = {
    *("requests", "ok", "errors", "ttft_ms", "tpot_ms", "e2e_ms", "completed_per_s"),
    *("goodput_per_s", "good_share", "prompt_tokens", "output_tokens", "output_tokens_per_s"),
}


def invoke(*options: str) -> Result:
    return CliRunner().invoke(app, ["serve", "--url", "http://127.0.0.1:1", *options])


async def load(gateway: Gateway, server: str, *models: str, **bounds: float) -> list[Outcome]:
    """A request of each model, all due at once."""
    arrivals = [Arrival(0.0, 4, 3, model=model) for model in models]
    limits = Bounds(**{"max_seconds": 30.0, "max_concurrency": 16} | bounds)
    async with new_client(server, gateway.key, 16) as client:
        target = Target(client, "completions", ignore_eos=False)
        return await run_load(target, arrivals, limits, 0, lambda _: None)


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
async def test_the_command_reports_each_model_and_what_failed(
    gateway: Gateway, server: str, endpoint: str
) -> None:
    options = ["--model", "tiny", "--model", "acme/none", "--rate", "200", "--num-requests", "4"]
    options += ["--input-tokens", "3", "--output-tokens", "3", "--endpoint", endpoint]
    command = ["serve", "--url", f"{server}/v1/", "--key", gateway.key, *options, "--json"]
    result = await asyncio.to_thread(CliRunner().invoke, app, command)
    assert result.exit_code == 0, result.output
    (line,) = result.stdout.splitlines()
    report = json.loads(line)
    assert report.keys() >= {"duration_s", "asked_per_s", "sent_per_s", "lag_ms", "ignore_eos"}
    assert report["all"].keys() == SUMMARY
    assert (report["all"]["requests"], report["all"]["ok"]) == (4, 2)
    assert report["all"]["errors"] == {"404": 2}
    assert report["models"]["tiny"]["output_tokens"] == 6
    assert report["models"]["tiny"]["prompt_tokens"] > 0
    assert report["models"]["acme/none"]["ttft_ms"] is None
    assert "acme/none" in report["error_examples"]["404"]
    assert "4 of 4 sent" in result.stderr
    await gateway.assert_all_settled()


async def test_without_json_the_command_prints_a_table(gateway: Gateway, server: str) -> None:
    options = ["--model", "tiny", "--rate", "200", "--num-requests", "2", "--slo-ttft-ms", "60000"]
    short = ["--input-tokens", "3", "--output-tokens", "3"]
    command = ["serve", "--url", server, "--key", gateway.key, *options, *short]
    result = await asyncio.to_thread(CliRunner().invoke, app, command)
    assert result.exit_code == 0, result.output
    assert "100.0%" in result.stdout


async def test_a_trace_is_replayed(gateway: Gateway, server: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,client,input_tokens,output_tokens\n10,c,5,2\n11,c,5,2\n")
    options = ["--model", "tiny", "--trace", str(trace), "--speed", "100", "--json"]
    command = ["serve", "--url", server, "--key", gateway.key, *options]
    result = await asyncio.to_thread(CliRunner().invoke, app, command)
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["all"]["ok"] == 2
    assert report["asked_per_s"] == pytest.approx(200)


async def test_a_stream_that_ends_in_an_error_is_told_from_one_that_ends_well(
    gateway: Gateway, server: str
) -> None:
    def answer(engine: ScriptedEngine, request_id: str) -> None:
        if len(engine.runs) == 1 and not failed:
            failed.append(request_id)
            engine.emit(request_id, "Hel")
            engine.fail(request_id)
        else:
            says("Hel", "lo")(engine, request_id)

    failed: list[str] = []
    gateway.engine.answer = answer
    (first,) = await load(gateway, server, "tiny")
    (second,) = await load(gateway, server, "tiny")
    assert (first.status, second.status) == ("error_in_stream", "ok")
    assert second.completion_tokens == 2
    assert second.sent_s <= second.first_s <= second.last_s <= second.end_s


async def test_what_is_due_above_the_bound_is_not_sent_and_what_runs_too_long_is_cut_off(
    gateway: Gateway, server: str
) -> None:
    gateway.engine.answer = None
    outcomes = await load(gateway, server, *["tiny"] * 3, max_concurrency=2, max_seconds=0.5)
    statuses = [outcome.status for outcome in outcomes]
    assert statuses == ["unfinished", "unfinished", "not_sent_max_concurrency"]
    assert summarise_run(outcomes, Slo())["all"]["errors"]["unfinished"] == 2
    await gateway.assert_all_settled()


async def test_what_is_due_after_the_end_is_not_sent(gateway: Gateway, server: str) -> None:
    arrivals = [Arrival(at_s, 1, 1, model="tiny") for at_s in (0.0, 60.0)]
    async with new_client(server, gateway.key, 1) as client:
        target = Target(client, "completions", ignore_eos=False)
        bounds = Bounds(max_seconds=0.5, max_concurrency=1)
        outcomes = await run_load(target, arrivals, bounds, 0, lambda _: None)
    assert [outcome.status for outcome in outcomes] == ["ok", "not_sent_max_seconds"]


async def test_a_server_that_is_gone_is_an_error_of_each_request(gateway: Gateway) -> None:
    outcomes = await load(gateway, "http://127.0.0.1:1", "tiny", "tiny")
    assert {outcome.status for outcome in outcomes} == {"cannot_connect"}


@pytest.mark.parametrize("offers", [True, False])
async def test_ignore_eos_is_asked_for_where_the_server_offers_it(offers: bool) -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        asked = "ignore_eos" in json.loads(request.content)
        return httpx.Response(400 if asked and not offers else 200)

    transport = httpx.MockTransport(handle)
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        target = await probe(client, "completions", "tiny")
    body = json.loads(target.body(Arrival(0.0, 3, 7, model="tiny"), (0,)))
    assert target.ignore_eos is offers is ("ignore_eos" in body)
    assert (body["max_tokens"], body["stream"]) == (7, True)


async def test_a_server_that_refuses_the_first_request_ends_the_run(
    gateway: Gateway, server: str
) -> None:
    async with new_client(server, "lpx_wrong", 1) as client:
        with pytest.raises(LoadRefused, match="answered 401 to a request of tiny"):
            await probe(client, "completions", "tiny")


def test_no_server_is_told_in_one_line() -> None:
    result = invoke("--model", "tiny")
    assert result.exit_code == 1
    assert "http://127.0.0.1:1 does not answer" in result.stderr


@pytest.mark.parametrize(
    "url", ["http://10.0.0.1:8000", "https://example.com", "http://127.0.0.1.evil.com"]
)
def test_another_machine_is_loaded_only_when_that_is_said(url: str) -> None:
    with pytest.raises(LoadRefused, match="--allow-remote"):
        check_url(url, allow_remote=False)
    assert check_url(url, allow_remote=True) == url


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://localhost", "http://", "http://h:x"])
def test_what_is_no_address_of_a_server_is_refused(url: str) -> None:
    with pytest.raises(LoadRefused, match="--url"):
        check_url(url, allow_remote=True)


@pytest.mark.parametrize("url", ["http://localhost:1/", "http://[::1]:1", "http://127.1.2.3:1/v1"])
def test_loopback_has_several_names(url: str) -> None:
    assert check_url(url, allow_remote=False) == url.rstrip("/").removesuffix("/v1")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--rate", "0"), "--rate is 0.0; it must be above 0"),
        (("--rate", "nan"), "--rate is nan; it must be above 0"),
        (("--max-seconds", "inf"), "--max-seconds is inf; it must be above 0"),
        (("--slo-ttft-ms", "-1"), "--slo-ttft-ms is -1.0; it must be above 0"),
        (("--speed", "2"), "--speed is for a --trace only"),
        (("--trace", "t.csv", "--rate", "2"), "--rate is what a --trace decides"),
        (("--trace", "/none.csv"), "the trace /none.csv cannot be read"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: tuple[str, ...], reason: str) -> None:
    result = invoke("--model", "tiny", *options)
    assert result.exit_code == 1
    assert reason in result.stderr


def test_a_model_must_be_named() -> None:
    assert invoke().exit_code == 2
