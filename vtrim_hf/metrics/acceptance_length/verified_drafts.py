"""How many drafted tokens a target takes at a time: the figures, by plain Python and numpy.

It stands alone: it is copied beside `acceptance_length.py` wherever `evaluate` puts that.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

_RESAMPLES = 1000


def acceptance_length(
    accepted: Iterable[Sequence[int]],
    drafted: int | Iterable[Sequence[int]] | None = None,
    *,
    seed: int = 0,
) -> dict[str, Any]:
    """Tell how many tokens a verification gives: those that it accepts, and the target's own.

    Args:
        accepted: one list a text: of each draft that the target verified, how many of its tokens
            it took, 0 included. The first forward over a prompt verifies nothing and has no entry.
        drafted: how many tokens these drafts had, in the same lists, or one number for all.
        seed: of the bootstrap.

    Returns:
        acceptance_length, 1 + accepted tokens / verified drafts, a ratio of sums over all texts;
        low and high, its 95 % interval, by drawing whole texts that have drafts anew 1,000 times,
        as drafts of one text resemble each other (one text alone says nothing about others: both
        equal the length);
        acceptance_by_position, the share of the drafts whose i-th token was taken, which sum to
        acceptance_length - 1;
        verifications, accepted and texts;
        drafted, and acceptance_rate, accepted / drafted: None without `drafted`.

    Raises:
        ValueError: if a count is no whole number from 0 up, there is no verification, or
            `drafted` does not fit: other lists, or a draft of which more was taken than it had.
    """
    texts = [checked_counts(text, f"text {number}") for number, text in enumerate(accepted)]
    every = [count for text in texts for count in text]
    if not every:
        raise ValueError(
            f"an acceptance length needs at least one verified draft, got none in {len(texts)} "
            "texts"
        )
    tokens = None if drafted is None else _drafted(drafted, texts)
    deepest = max(every) if tokens is None else max(tokens)
    low, high = _interval(
        np.asarray([(sum(text), len(text)) for text in texts], dtype=np.float64), seed
    )
    return {
        "acceptance_length": 1 + sum(every) / len(every),
        "low": 1 + low,
        "high": 1 + high,
        "acceptance_by_position": [
            sum(count >= position for count in every) / len(every)
            for position in range(1, deepest + 1)
        ],
        "verifications": len(every),
        "accepted": sum(every),
        "texts": len(texts),
        "drafted": None if tokens is None else sum(tokens),
        "acceptance_rate": None if tokens is None else sum(every) / sum(tokens),
    }


def _drafted(drafted: int | Iterable[Sequence[int]], texts: Sequence[Sequence[int]]) -> list[int]:
    """Return the tokens of each draft, text by text."""
    if isinstance(drafted, Iterable):
        lists = [
            checked_counts(text, f"drafted, text {number}") for number, text in enumerate(drafted)
        ]
    else:
        lists = [[_count(drafted, "drafted")] * len(text) for text in texts]
    if [len(text) for text in lists] != [len(text) for text in texts]:
        raise ValueError(
            "drafted must have one number for each verified draft, in the same lists, got "
            f"{sum(map(len, lists))} in {len(lists)} lists for {sum(map(len, texts))} in "
            f"{len(texts)}"
        )
    for number, (some, taken) in enumerate(zip(lists, texts, strict=True)):
        for place, (tokens, count) in enumerate(zip(some, taken, strict=True)):
            if count > tokens or not tokens:
                raise ValueError(
                    f"a verified draft has at least one token and gives at most all of them, got "
                    f"{count} of {tokens} in draft {place} of text {number}"
                )
    return [tokens for text in lists for tokens in text]


def checked_counts(text: Iterable[Any], where: str) -> list[int]:
    """Return the counts of one text as Python's own numbers.

    Args:
        text: what a caller gave.
        where: names it in an error.

    Raises:
        ValueError: if one is no whole number from 0 up.
    """
    return [_count(count, where) for count in text]


def _count(count: Any, where: str) -> int:
    try:
        number = operator.index(count)
    except TypeError:
        number = -1
    if number < 0 or isinstance(count, bool):
        raise ValueError(f"counts must be whole numbers from 0 up, got {count!r} in {where}")
    return number


def _interval(parts: np.ndarray, seed: int) -> tuple[float, float]:
    """Draw whole texts anew; parts [texts, 2] are numerators and denominators of one ratio."""
    parts = parts[parts[:, 1] > 0]  # a drawing of nothing but empty texts would have no ratio
    draw = np.random.default_rng(seed).integers
    sums = np.stack(
        [parts[draw(len(parts), size=len(parts))].sum(axis=0) for _ in range(_RESAMPLES)]
    )
    low, high = np.percentile(sums[:, 0] / sums[:, 1], [2.5, 97.5])
    return float(low), float(high)
