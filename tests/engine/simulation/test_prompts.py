import pytest

from loraplex.engine.simulation.prompts import HASHED_TOKENS, ideal_hit_share, prompt_of, vocabulary
from loraplex.engine.simulation.traces import TraceRequest

LENGTH = 2 * HASHED_TOKENS + 88


def turn(*hash_ids: int, tenant: str = "t") -> TraceRequest:
    return TraceRequest(0.0, tenant, LENGTH, 1, hash_ids=hash_ids)


def test_blocks_of_equal_hashes_are_equal_tokens_and_others_are_not() -> None:
    first, second = prompt_of(0, turn(1, 2, 3)), prompt_of(1, turn(1, 2, 4))
    assert len(first) == len(second) == LENGTH
    shared = 2 * HASHED_TOKENS
    assert first[:shared] == second[:shared]
    assert first[shared] != second[shared]
    assert max(*first, *second) < vocabulary([turn(1, 2, 4)])


def test_prompts_of_which_nothing_is_told_have_no_token_in_common() -> None:
    request = TraceRequest(0.0, "t", 5, 1)
    assert not {*prompt_of(0, request)} & {*prompt_of(1, request)}


def test_the_ideal_share_counts_whole_blocks_of_a_prefix_that_came_before() -> None:
    told = [turn(1, 2, 3), turn(1, 2, 4), turn(5, 2, 3)]
    assert ideal_hit_share(told) == pytest.approx(2 * HASHED_TOKENS / (3 * LENGTH))


def test_tenants_share_no_prefix() -> None:
    assert ideal_hit_share([turn(1, 2, 3), turn(1, 2, 3, tenant="other")]) == 0
