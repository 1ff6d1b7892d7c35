"""Deficits, alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loraplex.engine.fairness import FairShare


def waiting(quantum_ms: float = 10.0, overdraft_ms: float = 0.0, **weights: float) -> FairShare:
    share = FairShare(quantum_ms, overdraft_ms)
    for tenant, weight in weights.items():
        share.wait(tenant, weight)
    return share


def test_a_new_tenant_may_be_served_at_once_and_until_its_quantum_is_used() -> None:
    share = waiting(a=2.0)
    share.charge("r", "a", 19.0)
    assert share.is_eligible("a")
    share.charge("s", "a", 1.0)
    assert not share.is_eligible("a")


def test_a_refill_gives_by_weight_and_as_often_as_makes_one_eligible() -> None:
    share = waiting(a=1.0, b=2.0)
    share.charge("r", "a", 45.0)
    share.charge("s", "b", 65.0)
    share.refill()
    assert share.num_refills == 3
    assert (share.deficit_ms("a"), share.deficit_ms("b")) == (-5.0, 15.0)
    assert share.eligible == ["b"]


def test_what_is_not_used_is_given_back_and_what_is_used_beyond_is_charged() -> None:
    share = waiting(a=1.0)
    share.charge("r", "a", 8.0)
    share.use("r", 3.0)
    assert share.close("r") == 3.0
    assert share.deficit_ms("a") == 7.0
    share.charge("s", "a", 1.0)
    share.use("s", 5.0)
    assert share.deficit_ms("a") == 2.0


def test_who_did_not_wait_keeps_its_debt_less_the_refills_it_missed() -> None:
    share = waiting(a=1.0, b=1.0)
    share.charge("r", "a", 35.0)
    share.use("r", 35.0)
    share.stop_waiting("a")
    share.charge("s", "b", 15.0)
    share.refill()
    share.wait("a", 1.0)
    assert share.deficit_ms("a") == -15.0


def test_who_did_not_wait_gathers_at_most_one_quantum() -> None:
    share = waiting(a=1.0, b=1.0)
    share.charge("r", "a", 5.0)
    share.stop_waiting("a")
    share.charge("s", "b", 95.0)
    share.refill()
    share.wait("a", 1.0)
    assert share.deficit_ms("a") == 10.0


def test_gaps_are_filled_on_credit_up_to_the_overdraft() -> None:
    share = waiting(overdraft_ms=20.0, a=1.0)
    share.charge("r", "a", 12.0)
    assert share.may_fill_gap("a", 17.0)
    assert not share.may_fill_gap("a", 18.0)


def test_what_was_prepaid_is_used_before_the_charge_and_never_given_back() -> None:
    share = waiting(overdraft_ms=10.0, a=1.0, b=1.0)
    share.charge("r", "a", 1.0)
    share.charge("s", "b", 5.0)
    assert share.prepay("r", "s", 4.0)
    assert share.deficit_ms("a") == 5.0
    share.close("s")
    share.charge("s", "b", 7.0)
    assert share.deficit_ms("b") == 7.0
    share.use("s", 6.0)
    assert share.close("s") == 2.0
    assert share.deficit_ms("b") == 8.0


@pytest.mark.parametrize("is_closed", [True, False])
def test_what_was_prepaid_and_is_not_to_be_done_again_is_given_back(*, is_closed: bool) -> None:
    share = waiting(overdraft_ms=10.0, a=1.0, b=1.0)
    share.charge("r", "a", 1.0)
    share.charge("s", "b", 5.0)
    assert share.prepay("r", "s", 8.0)
    share.resume("s")
    if is_closed:
        share.use("r", 1.0)
        share.close("r")
    share.restore("s", 3.0)
    assert share.deficit_ms("a") == 10.0 - 1.0 - 3.0
    share.use("s", 8.0)
    assert share.deficit_ms("b") == 10.0 - 5.0
    assert is_closed or share.prepay("r", "s", 7.0)


def test_what_was_prepaid_for_a_request_that_ends_is_given_back() -> None:
    share = waiting(overdraft_ms=10.0, a=1.0, b=1.0)
    share.charge("r", "a", 1.0)
    share.charge("s", "b", 5.0)
    assert share.prepay("r", "s", 8.0)
    share.resume("s")
    share.use("s", 2.0)  # a copy, say
    share.forget("s")
    share.close("s")
    assert (share.deficit_ms("a"), share.deficit_ms("b")) == (10.0 - 1.0 - 2.0, 10.0)


def test_one_request_cannot_prepay_more_than_the_overdraft() -> None:
    share = waiting(overdraft_ms=10.0, a=1.0)
    share.charge("r", "a", 1.0)
    assert share.prepay("r", "s", 6.0)
    assert not share.prepay("r", "s", 6.0)
    assert share.deficit_ms("a") == 3.0


def test_when_nobody_competes_all_is_forgotten() -> None:
    share = waiting(a=1.0)
    share.charge("r", "a", 100.0)
    share.use("r", 100.0)
    share.stop_waiting("a")
    share.close("r")
    share.wait("a", 1.0)
    assert share.deficit_ms("a") == 10.0


@pytest.mark.parametrize(("quantum_ms", "overdraft_ms"), [(0.0, 0.0), (1.0, -1.0)])
def test_settings_without_sense_are_refused(quantum_ms: float, overdraft_ms: float) -> None:
    with pytest.raises(ValueError, match="quantum"):
        FairShare(quantum_ms, overdraft_ms)


def running(
    open_: dict[str, tuple[str, float]], out: set[str], tenant: str
) -> tuple[list[str], list[str]]:
    """Charges of a tenant, and those of all others, of requests that have not been pushed out."""
    keys = [key for key in open_ if key not in out]
    mine = [key for key in keys if open_[key][0] == tenant]
    return mine, [key for key in keys if open_[key][0] != tenant]


def test_tenants_that_will_be_next_are_found_behind_entries_that_say_no_more() -> None:
    names = "abcdefghijklmnop"
    share = waiting(**dict.fromkeys(names, 1.0))
    for name in names:
        share.charge(name, name, 11.0)
    for used_ms in (21.0, 10.0, 10.0, 10.0):  # each is to be next, and then later, and later
        for name in names:
            share.use(name, used_ms)
    share.use("p", 1.0)  # which is due when it was
    assert len(set(share.next_tenants(4))) == 4
    assert sorted(share.next_tenants(16)) == list(names)
    share.check()


def push_out(
    share: FairShare, mine: list[str], others: list[str], out: set[str], ms: float
) -> None:
    if mine and others and share.prepay(mine[0], others[0], ms):
        share.resume(others[0])
        out.add(others[0])


def bring_back(share: FairShare, _: list[str], __: list[str], out: set[str], ms: float) -> None:
    if out:
        share.restore(min(out), ms)
        out.remove(min(out))


PUSHES = {"prepay": push_out, "restore": bring_back}


@given(
    actions=st.lists(
        st.tuples(
            st.sampled_from(
                ["charge", "use", "close", "stop", "wait", "refill", "prepay", "restore"]
            ),
            st.sampled_from("abc"),
            st.floats(0, 50),
        ),
        max_size=80,
    )
)
def test_deficits_stay_within_their_bounds_whatever_happens(
    actions: list[tuple[str, str, float]],
) -> None:
    quantum_ms, overdraft_ms, cap_ms, max_open = 10.0, 20.0, 50.0, 3
    share = FairShare(quantum_ms, overdraft_ms)
    weights = {"a": 1.0, "b": 2.5, "c": 0.3}
    open_: dict[str, tuple[str, float]] = {}
    out: set[str] = set()
    """Of those, the ones that have been pushed out."""
    for number, (action, tenant, ms) in enumerate(actions):
        mine, others = running(open_, out, tenant)
        if action == "wait":
            share.wait(tenant, weights[tenant])
        elif action == "stop":
            share.stop_waiting(tenant)
        elif action == "refill" and share.can_refill:
            share.refill()
        elif action == "charge" and share.is_eligible(tenant) and len(open_) < max_open:
            share.charge(f"r{number}", tenant, ms)
            open_[f"r{number}"] = tenant, 0.0
        elif mine and action == "use":
            used = min(ms, cap_ms - open_[mine[0]][1])
            share.use(mine[0], used)
            open_[mine[0]] = tenant, open_[mine[0]][1] + used
        elif action in PUSHES:
            PUSHES[action](share, mine, others, out, ms)
        elif mine and action == "close":
            share.close(mine[0])
            del open_[mine[0]]
        share.check()
        for each in share._accounts:
            deficit = share.deficit_ms(each)
            assert deficit <= quantum_ms * weights[each] + max_open * cap_ms + 1e-6
            assert deficit > -max_open * (cap_ms + overdraft_ms) - overdraft_ms - 1e-6
