"""What the numbers of a `DecodingModel` must be: shares, seconds, and what may not fall."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np

LONGEST_DRAFT = 64
"""No model searches drafts of more tokens."""

_SHORTEST = 1e-100
"""Seconds of a token; the speed of much less is no finite float."""


def checked_numbers(model: Any) -> dict[str, Any]:
    """Return the numbers of a decoding model as Python's own, in order.

    Args:
        model: a `DecodingModel` whose fields are as they were given.

    Raises:
        ValueError: if one is out of its range.
        TypeError: if `acceptance`, `forward` or `draft_step` is of another kind.
    """
    rates = checked_rates(model.acceptance)
    coverage = _number(model.coverage, "coverage")
    if not 0 < coverage <= 1:
        raise ValueError(
            f"coverage must lie in (0, 1], got {coverage}: the share of the text's tokens that "
            "the draft whose acceptance it is could say, 1 for the full vocabulary"
        )
    overhead = _number(model.overhead, "overhead")
    if overhead < 0:
        raise ValueError(f"overhead must not be negative, got {overhead} seconds")
    plain = model.plain_seconds
    if plain is not None and (plain := _number(plain, "plain_seconds")) < _SHORTEST:
        raise ValueError(
            f"plain_seconds must be above 0, {_SHORTEST} at least, got {plain}: say what a token "
            "takes without a draft, or leave it out"
        )
    length = _whole(model.max_draft_length)
    if length is None or not 1 <= length <= LONGEST_DRAFT:
        raise ValueError(
            f"max_draft_length must be a whole number from 1 to {LONGEST_DRAFT}, got "
            f"{model.max_draft_length!r}"
        )
    return {
        "acceptance": rates,
        "forward": _checked_forward(model.forward),
        "coverage": coverage,
        "overhead": overhead,
        "plain_seconds": plain,
        "draft_step": None if model.draft_step is None else _checked_step(model.draft_step),
        "max_draft_length": length,
    }


def checked_rates(acceptance: Any) -> tuple[float, ...]:
    """Return the shares of an acceptance by position as Python's own numbers.

    Raises:
        ValueError: if there is none, or one is no share.
        TypeError: if it is no list of numbers.
    """
    if isinstance(acceptance, str | Mapping) or not _has_items(acceptance):
        raise TypeError(
            f"acceptance must be a list of shares, one a position, got {acceptance!r:.80}: write "
            "[0.8] for the same share at each"
        )
    rates = tuple(_number(rate, "an acceptance") for rate in acceptance)
    if not rates or min(rates) < 0 or max(rates) > 1:
        raise ValueError(
            "acceptance must hold a share in [0, 1] for each position, the first at least, got "
            f"{list(rates)}: shares of the drafts that got so far, no percentages"
        )
    return rates


def _has_items(value: Any) -> bool:
    """Say whether a value can be gone through; a numpy array without dimensions cannot."""
    try:
        iter(value)
    except TypeError:
        return False
    return True


def _whole(value: Any) -> int | None:
    """Return a whole number, numpy's included, as Python's own; None for anything else."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def _number(value: Any, name: str) -> float:
    try:
        number = (
            math.nan if isinstance(value, bool) or not isinstance(value, Real) else float(value)
        )
    except OverflowError:  # a whole number beyond the floats
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{name} must be a finite number, got {value!r:.80}")
    return number


def _checked_forward(forward: Mapping[float, float]) -> dict[float, float]:
    """Return the times by ascending number of tokens."""
    if not isinstance(forward, Mapping):
        raise TypeError(
            "forward must map numbers of tokens to seconds, such as {1: 0.030, 5: 0.036}, got "
            f"{type(forward).__name__}"
        )
    named = (
        (_number(tokens, "a number of tokens in forward"), _number(seconds, "seconds in forward"))
        for tokens, seconds in forward.items()
    )
    times = dict(sorted(named))
    if 1.0 not in times or min(times) < 1.0:
        raise ValueError(
            "forward must say what 1 token takes, and nothing for less, got the numbers of tokens "
            f"{[*times]}"
        )
    seconds = [*times.values()]
    if seconds[0] < _SHORTEST or any(np.diff(seconds) < 0):
        raise ValueError(
            f"seconds in forward must be above 0, {_SHORTEST} at least, and not fall with more "
            f"tokens, got {times}: measure again, longer, or smooth them"
        )
    return times


def _checked_step(step: Any) -> tuple[int, float]:
    rule = (
        "draft_step must be (rows of the head, seconds of a step), such as (49152, 0.004), got "
        f"{step!r:.80}"
    )
    if isinstance(step, str | Mapping) or not _has_items(step):
        raise TypeError(rule)
    pair = tuple(step)
    rows = _whole(pair[0]) if len(pair) == 2 else None
    if rows is None or rows < 1:
        raise ValueError(rule)
    seconds = _number(pair[1], "seconds of draft_step")
    if seconds <= 0:
        raise ValueError(rule)
    return rows, seconds
