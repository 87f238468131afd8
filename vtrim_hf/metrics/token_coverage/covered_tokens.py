"""Which tokens of some texts a vocabulary holds: the figures, by plain Python and numpy.

It stands alone: it is copied beside `token_coverage.py` wherever `evaluate` puts that.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

_RESAMPLES = 1000


def token_coverage(
    texts: Iterable[Sequence[int]],
    kept_ids: Any,
    *,
    most_missed: int = 20,
    text_of: Callable[[int], str] | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Tell which share of the tokens of some texts a vocabulary holds.

    Args:
        texts: token ids, one list a text: what a target said, or must say.
        kept_ids: the ids that are held: a list, an array or a tensor, in any order.
        most_missed: how many of the missed ids are named, the most frequent ones.
        text_of: gives the text of an id.
        seed: of the bootstrap.

    Returns:
        token_coverage, the share of tokens (each as often as it is said) that is held;
        low and high, its 95 % interval, by drawing whole texts that have tokens anew 1,000 times
        (one text alone says nothing about others, so both then equal the share);
        tokens and covered_tokens;
        distinct_tokens and distinct_missed;
        whole_texts, the share of texts of which every token is held;
        most_missed, by falling count: id, count, and text where it is known.

    Raises:
        TypeError: if there are no kept ids.
        ValueError: if an id is no whole number from 0 up, or no text holds a token.
    """
    kept = _kept(kept_ids)
    missed: Counter[int] = Counter()
    said: set[int] = set()
    parts = []
    for number, text in enumerate(texts):
        ids = checked_ids(text, f"text {number}")
        outside = [token for token in ids if token not in kept]
        said.update(ids)
        missed.update(outside)
        parts.append((len(ids) - len(outside), len(ids)))
    covered, total = (sum(part[place] for part in parts) for place in (0, 1))
    if not total:
        raise ValueError(
            f"a share of tokens needs at least one token, got none in {len(parts)} texts"
        )
    low, high = _interval(np.asarray(parts, dtype=np.float64), seed)
    ranked = sorted(missed.items(), key=lambda one: (-one[1], one[0]))[:most_missed]
    return {
        "token_coverage": covered / total,
        "low": low,
        "high": high,
        "tokens": total,
        "covered_tokens": covered,
        "distinct_tokens": len(said),
        "distinct_missed": len(missed),
        "whole_texts": sum(held == tokens for held, tokens in parts) / len(parts),
        "most_missed": [
            {"id": token, "count": count, "text": None if text_of is None else text_of(token)}
            for token, count in ranked
        ],
    }


def _kept(kept_ids: Any) -> frozenset[int]:
    if kept_ids is None:
        raise TypeError(
            "kept_ids must be the ids that the vocabulary holds, got None: a draft without such "
            "a table says every token, and its coverage is 1"
        )
    listed = kept_ids.tolist() if hasattr(kept_ids, "tolist") else kept_ids
    kept = frozenset(_id(token, "kept_ids") for token in listed)
    if not kept:
        raise ValueError("kept_ids must hold at least one id, got none")
    return kept


def checked_ids(text: Iterable[Any], where: str) -> list[int]:
    """Return the ids of one text as Python's own numbers.

    Args:
        text: what a caller gave.
        where: names it in an error.

    Raises:
        ValueError: if one is no whole number from 0 up.
    """
    return [_id(token, where) for token in text]


def _id(token: Any, where: str) -> int:
    try:
        index = operator.index(token)
    except TypeError:
        index = -1
    if index < 0 or isinstance(token, bool):
        raise ValueError(f"token ids must be whole numbers from 0 up, got {token!r} in {where}")
    return index


def _interval(parts: np.ndarray, seed: int) -> tuple[float, float]:
    """Draw whole texts anew; parts [texts, 2] are numerators and denominators of one ratio."""
    parts = parts[parts[:, 1] > 0]  # a drawing of nothing but empty texts would have no ratio
    draw = np.random.default_rng(seed).integers
    sums = np.stack(
        [parts[draw(len(parts), size=len(parts))].sum(axis=0) for _ in range(_RESAMPLES)]
    )
    low, high = np.percentile(sums[:, 0] / sums[:, 1], [2.5, 97.5])
    return float(low), float(high)
