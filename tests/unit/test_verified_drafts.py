"""Acceptance length: worked examples, its interval, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vtrim_hf.metrics.acceptance_length.verified_drafts import acceptance_length


def test_a_worked_example() -> None:
    found = acceptance_length([[2, 0, 3], [1], []], drafted=[[3, 2, 3], [4], []])
    assert found["acceptance_length"] == 1 + 6 / 4
    assert found["acceptance_by_position"] == [3 / 4, 2 / 4, 1 / 4, 0]
    assert (found["verifications"], found["accepted"], found["texts"]) == (4, 6, 3)
    assert (found["drafted"], found["acceptance_rate"]) == (12, 0.5)
    assert 1 <= found["low"] <= 2.5 <= found["high"]


def test_without_the_drafted_tokens_there_is_no_rate() -> None:
    found = acceptance_length([[2, 0, 3], [1]])
    assert found["acceptance_by_position"] == [0.75, 0.5, 0.25]
    assert found["drafted"] is None
    assert found["acceptance_rate"] is None
    same = acceptance_length([[2, 0, 3], [1]], drafted=3)
    assert (same["drafted"], same["acceptance_rate"]) == (12, 0.5)


def test_nothing_accepted_gives_one_token() -> None:
    found = acceptance_length([[0, 0], [0]], drafted=2)
    assert (found["acceptance_length"], found["low"], found["high"]) == (1, 1, 1)
    assert found["acceptance_by_position"] == [0, 0]


@settings(deadline=None, max_examples=40)
@given(
    st.lists(
        st.lists(
            st.tuples(st.integers(0, 5), st.integers(0, 3)).map(lambda one: (one[0], sum(one))),
            max_size=6,
        ),
        min_size=1,
        max_size=6,
    )
)
def test_shares_by_position_sum_to_the_length(texts: list[list[tuple[int, int]]]) -> None:
    texts = [[(taken, max(tokens, 1)) for taken, tokens in text] for text in texts]
    accepted = [[taken for taken, _ in text] for text in texts]
    if not any(accepted):
        with pytest.raises(ValueError, match="at least one verified draft"):
            acceptance_length(accepted)
        return
    found = acceptance_length(accepted, [[tokens for _, tokens in text] for text in texts])
    length = found["acceptance_length"]
    assert sum(found["acceptance_by_position"]) == pytest.approx(length - 1)
    assert found["acceptance_by_position"] == sorted(found["acceptance_by_position"], reverse=True)
    assert found["low"] - 1e-9 <= length <= found["high"] + 1e-9
    assert 0 <= found["acceptance_rate"] <= 1


def test_texts_are_drawn_and_not_drafts() -> None:
    """Drafts of one text resemble each other: twice as many of them tell nothing new."""
    texts = [[4] * 3, [0] * 3, [4] * 3, [1] * 3]
    doubled = [text * 2 for text in texts]
    once, twice = acceptance_length(texts), acceptance_length(doubled)
    assert (once["low"], once["high"]) == (twice["low"], twice["high"])
    apart = acceptance_length([[count] for text in texts for count in text])
    assert apart["high"] - apart["low"] < once["high"] - once["low"]


def test_texts_without_drafts_are_not_drawn() -> None:
    found = acceptance_length([[], [1]])
    assert (found["acceptance_length"], found["low"], found["high"]) == (2, 2, 2)
    texts = [[4, 1], [0], [2, 2]]
    one, other = acceptance_length(texts), acceptance_length([[], *texts, []])
    assert (one["low"], one["high"]) == (other["low"], other["high"])


@pytest.mark.parametrize("wrong", [-1, 1.0, "5", True, None])
def test_what_is_no_count_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"from 0 up, got .* in text 1"):
        acceptance_length([[1], [1, wrong]])
    with pytest.raises(ValueError, match=r"from 0 up, got .* in drafted, text 0"):
        acceptance_length([[1, 1]], [[2, wrong]])


@pytest.mark.parametrize(
    ("drafted", "said"),
    [
        ([[3, 3]], "one number for each verified draft, .* got 2 in 1 lists for 3 in 2"),
        ([[3], [3, 3]], "one number for each verified draft"),
        (1, "got 2 of 1 in draft 0 of text 0"),
        ([[2, 2], [0]], "got 0 of 0 in draft 0 of text 1"),
        (2.5, "whole numbers from 0 up"),
    ],
)
def test_drafted_tokens_that_do_not_fit_are_refused(drafted: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        acceptance_length([[2, 1], [0]], drafted)
