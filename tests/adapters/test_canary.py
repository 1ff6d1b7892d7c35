"""Canaries: which requests run on one, by nothing but their sticky text."""

from hypothesis import given
from hypothesis import strategies as st

from loraplex.adapters.registry.canary import takes_canary

PERCENT = st.integers(min_value=1, max_value=100)


@given(st.text(), st.text(), st.text(), PERCENT)
def test_the_same_request_is_always_in_or_always_out(
    tenant: str, model: str, sticky: str, percent: int
) -> None:
    first = takes_canary(tenant, model, sticky, percent)
    assert takes_canary(tenant, model, sticky, percent) is first


@given(st.text(), st.text(), st.text(), PERCENT, PERCENT)
def test_raising_the_percentage_takes_nobody_out(
    tenant: str, model: str, sticky: str, one: int, other: int
) -> None:
    lower, higher = sorted((one, other))
    if takes_canary(tenant, model, sticky, lower):
        assert takes_canary(tenant, model, sticky, higher)


@given(st.text(), st.text(), st.text())
def test_all_of_them_are_all_and_none_of_them_is_none(tenant: str, model: str, sticky: str) -> None:
    assert takes_canary(tenant, model, sticky, 100)
    assert not takes_canary(tenant, model, sticky, 0)


@given(st.text(max_size=20), st.text(max_size=20), PERCENT)
def test_the_share_of_many_requests_is_the_percentage(
    tenant: str, model: str, percent: int
) -> None:
    num = 2000
    taken = sum(takes_canary(tenant, model, f"user-{i}", percent) for i in range(num))
    # Six standard deviations of a fair draw.
    assert (
        abs(taken - num * percent / 100) <= 6 * (num * percent / 100 * (1 - percent / 100)) ** 0.5
    )


def test_each_alias_draws_its_own_share() -> None:
    def members(model: str) -> set[int]:
        return {i for i in range(1000) if takes_canary("t", model, f"u{i}", 10)}

    prod, beta = members("acme/support:prod"), members("acme/support:beta")
    assert len(prod & beta) < 40, "a tenth of a tenth was expected"


def test_parts_of_a_name_do_not_run_into_each_other() -> None:
    places = {
        tuple(takes_canary(*parts, percent) for percent in range(1, 101))
        for parts in (("a", "b", "c"), ("ab", "", "c"), ("a", "bc", ""), ("", "ab", "c"))
    }
    assert len(places) == 4
