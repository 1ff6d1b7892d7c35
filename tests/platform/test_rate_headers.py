"""What headers tell of limits, given how these stand."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from loraplex.platform.api.rate_headers import duration, rate_headers, shadow_headers
from loraplex.tenants.periods import Period
from loraplex.tenants.scoped_limits import BudgetPeriod, ScopedLimit
from loraplex.tenants.standings import Standing

REQUESTS = ScopedLimit("tenant", "t", "requests_per_minute", 600, 600)
NOVEMBER = Period(datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC))


def told(*standings: Standing) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in rate_headers(standings)}


def test_the_limit_with_the_least_part_left_is_the_one_told() -> None:
    tokens = ScopedLimit("tenant", "t", "tokens_per_minute", 1000, 1000)
    of_key = replace(tokens, scope="key", scope_id="k", value=10, burst=10)
    output = replace(tokens, scope="project", dimension="output_tokens_per_minute", burst=100)
    headers = told(
        Standing(tokens, used=500, remaining=500, reset_s=30),
        Standing(of_key, used=2, remaining=8, reset_s=12),
        Standing(output, used=90, remaining=10, reset_s=5.4),
        Standing(replace(of_key, mode="shadow"), used=10, remaining=0, reset_s=60),
        Standing(REQUESTS, used=1, remaining=599, reset_s=0.1),
    )
    assert {name: headers[name] for name in headers if name.startswith("x-")} == {
        "x-ratelimit-limit-requests": "600",
        "x-ratelimit-remaining-requests": "599",
        "x-ratelimit-reset-requests": "100ms",
        "x-ratelimit-limit-tokens": "100",
        "x-ratelimit-remaining-tokens": "10",
        "x-ratelimit-reset-tokens": "6s",
    }


def test_all_limits_that_can_refuse_are_told_as_structured_fields() -> None:
    burst = ScopedLimit("key", "k", "tokens_per_minute", 600, 100)
    gauge = ScopedLimit("project", "p", "concurrency", 8, 8)
    cost = ScopedLimit(
        *("tenant", "t", "cost_micros_per_month", 10**16, 10**16), budget=BudgetPeriod(NOVEMBER, 3)
    )
    headers = told(
        Standing(REQUESTS, used=1, remaining=599, reset_s=0.1),
        Standing(burst, used=50, remaining=50, reset_s=5.0),
        Standing(gauge, used=3, remaining=5, reset_s=0),
        Standing(cost, used=10**16, remaining=-1, reset_s=86_400.5),
        Standing(replace(gauge, mode="shadow"), used=8, remaining=0, reset_s=0),
    )
    assert headers["ratelimit-policy"].split(", ") == [
        '"tenant/requests_per_minute";q=600;w=60;qu="requests"',
        '"key/tokens_per_minute";q=100;w=10;qu="tokens"',
        '"project/concurrency";q=8;qu="concurrent-requests"',
        '"tenant/cost_micros_per_month";q=999999999999999;w=2592000;qu="cost-micros"',
    ]
    assert headers["ratelimit"].split(", ") == [
        '"tenant/requests_per_minute";r=599;t=1',
        '"key/tokens_per_minute";r=50;t=5',
        '"project/concurrency";r=5',
        '"tenant/cost_micros_per_month";r=0;t=86401',
    ]


def test_limits_that_nobody_counts_are_not_told() -> None:
    assert rate_headers([]) == []
    assert shadow_headers([]) == []


def test_limits_in_shadow_mode_are_named_where_they_would_have_refused() -> None:
    shadow = replace(REQUESTS, mode="shadow")
    assert shadow_headers([shadow, replace(shadow, scope="key")]) == [
        (b"x-loraplex-shadowed-limits", b"tenant/requests_per_minute, key/requests_per_minute")
    ]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0ms"), (0.0011, "2ms"), (0.9999, "1s"), (1, "1s"), (59.1, "1m0s"), (360, "6m0s")],
)
def test_durations_are_written_as_clients_read_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text
