"""Token coverage: worked examples, its interval, and what it refuses."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vtrim_hf import DraftVocabulary, TokenCounts
from vtrim_hf.metrics.token_coverage.covered_tokens import token_coverage


def test_a_worked_example() -> None:
    texts = [[5, 7, 5, 9], [], [7], [8, 8, 9]]
    found = token_coverage(texts, [7, 5], text_of=lambda token: f"<{token}>")
    assert found["token_coverage"] == 4 / 8
    assert (found["tokens"], found["covered_tokens"]) == (8, 4)
    assert (found["distinct_tokens"], found["distinct_missed"]) == (4, 2)
    assert found["whole_texts"] == 2 / 4  # [] and [7]
    # Equally often missed: the smaller id comes first.
    assert found["most_missed"] == [
        {"id": 8, "count": 2, "text": "<8>"},
        {"id": 9, "count": 2, "text": "<9>"},
    ]
    assert 0 <= found["low"] < 0.5 < found["high"] <= 1
    assert token_coverage(texts, [5], most_missed=1)["most_missed"] == [
        {"id": 7, "count": 2, "text": None}
    ]


@pytest.mark.parametrize(
    "kept", [[5, 7], (7, 5), {5, 7}, range(5, 8), np.array([7, 5]), torch.tensor([5, 7])]
)
def test_kept_ids_are_taken_in_any_form(kept: Any) -> None:
    assert token_coverage([[5, 9], [7]], kept)["covered_tokens"] == 2


def test_numbers_of_arrays_are_ids() -> None:
    texts: list[Any] = [np.array([1, 2]), torch.tensor([1])]
    assert token_coverage(texts, [1])["covered_tokens"] == 2


@settings(deadline=None, max_examples=40)
@given(
    texts=st.lists(st.lists(st.integers(0, 9), max_size=8), min_size=1, max_size=8),
    kept=st.sets(st.integers(0, 9), min_size=1),
)
def test_it_is_what_the_package_counts(texts: list[list[int]], kept: set[int]) -> None:
    every = Counter(token for text in texts for token in text)
    if not every:
        with pytest.raises(ValueError, match="at least one token"):
            token_coverage(texts, kept)
        return
    counts = TokenCounts.from_counts(np.array([every[token] for token in range(10)]))
    found = token_coverage(texts, kept)
    vocabulary = DraftVocabulary.from_ids(sorted(kept), vocab_size=10)
    assert found["token_coverage"] == pytest.approx(counts.coverage(vocabulary))
    assert 0 <= found["low"] <= found["token_coverage"] + 1e-9
    assert found["token_coverage"] - 1e-9 <= found["high"] <= 1
    missed = sum(one["count"] for one in found["most_missed"])
    assert missed == found["tokens"] - found["covered_tokens"]


def test_the_interval_narrows_with_more_texts() -> None:
    texts = [[1, 1, 2], [1, 2, 2], [1, 1, 1], [2, 2, 2]]
    few, many = (token_coverage(texts * times, [1]) for times in (1, 30))
    assert few["token_coverage"] == many["token_coverage"] == 0.5
    assert many["high"] - many["low"] < (few["high"] - few["low"]) / 3
    again = token_coverage(texts, [1])
    assert (again["low"], again["high"]) == (few["low"], few["high"])
    alone = token_coverage(texts[:1], [1])
    assert alone["low"] == alone["token_coverage"] == alone["high"]


def test_empty_texts_are_not_drawn() -> None:
    found = token_coverage([[], [5, 5], [5]], [5])
    assert (found["token_coverage"], found["low"], found["high"]) == (1, 1, 1)
    texts = [[1, 1, 2], [1, 2], [2, 2, 2]]
    one, other = token_coverage(texts, [1]), token_coverage([[], *texts, [], []], [1])
    assert (one["low"], one["high"]) == (other["low"], other["high"])


@pytest.mark.parametrize("wrong", [-1, 1.0, "5", True, None])
def test_what_is_no_id_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"from 0 up, got .* in text 1"):
        token_coverage([[5], [5, wrong]], [5])
    with pytest.raises(ValueError, match=r"from 0 up, got .* in kept_ids"):
        token_coverage([[5]], [5, wrong])


def test_a_vocabulary_is_needed() -> None:
    with pytest.raises(TypeError, match="without such a table says every token"):
        token_coverage([[5]], None)
    with pytest.raises(ValueError, match="at least one id"):
        token_coverage([[5]], [])
