"""What the numbers of a `DecodingModel` must be: shares, seconds, and what may not fall."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np

LONGEST_DRAFT = 64
"""No model searches drafts of more tokens."""


def checked_numbers(model: Any) -> dict[str, Any]:
    """Return the numbers of a decoding model as Python's own, in order.

    Args:
        model: a `DecodingModel` whose fields are as they were given.

    Raises:
        ValueError: if one is out of its range.
        TypeError: if `acceptance` or `forward` is of another kind.
    """
    if isinstance(model.acceptance, str | Mapping):
        raise TypeError(f"acceptance must be a list of shares, got {model.acceptance!r:.80}")
    rates = tuple(_number(rate, "an acceptance") for rate in model.acceptance)
    if not rates or min(rates) < 0 or max(rates) > 1:
        raise ValueError(
            "acceptance must hold a share in [0, 1] for each position, the first at least, got "
            f"{list(rates)}: shares of the drafts that got so far, no percentages"
        )
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
    if plain is not None and (plain := _number(plain, "plain_seconds")) <= 0:
        raise ValueError(f"plain_seconds must be above 0, got {plain}")
    length = model.max_draft_length
    if type(length) is not int or not 1 <= length <= LONGEST_DRAFT:
        raise ValueError(
            f"max_draft_length must be a whole number from 1 to {LONGEST_DRAFT}, got {length!r}"
        )
    return {
        "acceptance": rates,
        "forward": _checked_forward(model.forward),
        "coverage": coverage,
        "overhead": overhead,
        "plain_seconds": plain,
        "draft_step": None if model.draft_step is None else _checked_step(model.draft_step),
    }


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number, got {value!r}")
    return float(value)


def _checked_forward(forward: Mapping[float, float]) -> dict[float, float]:
    """Return the times by ascending number of tokens."""
    if not isinstance(forward, Mapping):
        raise TypeError(
            "forward must map numbers of tokens to seconds, such as {1: 0.030, 5: 0.036}, got "
            f"{type(forward).__name__}"
        )
    times = {
        _number(tokens, "a number of tokens in forward"): _number(seconds, "seconds in forward")
        for tokens, seconds in sorted(forward.items())
    }
    if 1.0 not in times or min(times) < 1.0:
        raise ValueError(
            "forward must say what 1 token takes, and nothing for less, got the numbers of tokens "
            f"{[*times]}"
        )
    seconds = [*times.values()]
    if seconds[0] <= 0 or any(np.diff(seconds) < 0):
        raise ValueError(
            f"seconds in forward must be above 0 and not fall with more tokens, got {times}: "
            "measure again, longer, or smooth them"
        )
    return times


def _checked_step(step: Sequence[Any]) -> tuple[int, float]:
    rows, seconds = step
    if type(rows) is not int or rows < 1 or _number(seconds, "seconds of draft_step") <= 0:
        raise ValueError(
            f"draft_step must be (rows of the head, seconds of a step), got {tuple(step)}"
        )
    return rows, float(seconds)
