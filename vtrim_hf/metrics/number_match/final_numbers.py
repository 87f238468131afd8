"""The number that an answer ends in, and whether it is the right one; plain Python.

It stands alone: it is copied beside `number_match.py` wherever `evaluate` puts that.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

# "-1,234.5", "$18", ".5", "3/4"; a minus behind a digit, a letter or a bracket takes away.
_NUMBER = re.compile(
    r"(?P<sign>(?<![0-9A-Za-z)\]])[-\u2212])?[$\u20ac\u00a3]?"
    r"(?P<digits>(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)"
    r"(?:/(?P<below>[0-9]+))?"
)
_MARK = "####"
_BOXED = "\\boxed{"
_SAID = re.compile(r"\banswer\s*(?:is|was|:|=)(?P<rest>.*?)(?=[.!?]\s|[.!?]?$)", re.I | re.M)


def final_number(text: str, *, strict: bool = False) -> Fraction | None:
    r"""Find the number that an answer ends in.

    The first of these that there is, each at its last place in the text:

    1. the first number behind `####` in its line, as GSM8K ends its answers;
    2. the first number in `\boxed{...}`;
    3. behind "answer is" or "answer:", in that sentence: the number behind the last "=", or else
       the first one;
    4. the last number of the text.

    Thousands may have commas; `$`, `%` and units do not count; 3/4 is a fraction, "three" none.

    Args:
        text: an answer.
        strict: take the number behind `####` only.

    Returns:
        The number, exactly; None if there is none.
    """
    places = []
    if _MARK in text:
        places.append(text.rpartition(_MARK)[2].partition("\n")[0])
    if not strict:
        if _BOXED in text:
            places.append(text.rpartition(_BOXED)[2].partition("}")[0])
        said = [match["rest"] for match in _SAID.finditer(text)]
        if said:
            places += [part for part in said[-1].rpartition("=")[::-2] if part]
    for place in places:
        found = _numbers(place)
        if found:
            return found[0]
    every = [] if strict else _numbers(text)
    return every[-1] if every else None


def number_match(
    predictions: Sequence[str], references: Sequence[str], *, strict: bool = False
) -> dict[str, Any]:
    """Tell how many answers end in the right number.

    Args:
        predictions: answers.
        references: right answers: the number alone, or behind `####`.
        strict: take only numbers behind `####` from the predictions.

    Returns:
        number_match, the share of predictions whose `final_number` is the reference's;
        low and high, its 95 % interval (Wilson's, which is not empty at 0 or 1);
        correct and total; unanswered, predictions without any number, which are wrong.

    Raises:
        ValueError: if there is nothing to compare, the lengths differ, or a reference has no
            number.
    """
    if not predictions or len(predictions) != len(references):
        raise ValueError(
            "predictions and references must be as many, and at least one, got "
            f"{len(predictions)} and {len(references)}"
        )
    correct = unanswered = 0
    for place, (prediction, reference) in enumerate(zip(predictions, references, strict=True)):
        right = final_number(reference)
        if right is None:
            raise ValueError(f"reference {place} must hold a number, got {reference[-80:]!r}")
        given = final_number(prediction, strict=strict)
        unanswered += given is None
        correct += given == right
    low, high = _wilson(correct, len(predictions))
    return {
        "number_match": correct / len(predictions),
        "low": low,
        "high": high,
        "correct": correct,
        "total": len(predictions),
        "unanswered": unanswered,
    }


def _numbers(text: str) -> list[Fraction]:
    return [number for match in _NUMBER.finditer(text) if (number := _value(match)) is not None]


def _value(match: re.Match[str]) -> Fraction | None:
    try:
        number = Fraction(match["digits"].replace(",", "")) / int(match["below"] or 1)
    except (ValueError, ZeroDivisionError):  # thousands of digits, or a division by 0
        return None
    return -number if match["sign"] else number


def _wilson(correct: int, total: int) -> tuple[float, float]:
    """Return the 95 % interval of a share (Wilson, 1927)."""
    z = 1.959964
    share, square = correct / total, z * z / total
    middle = share + square / 2
    half = z * math.sqrt((share * (1 - share) + square / 4) / total)
    low, high = (middle - half) / (1 + square), (middle + half) / (1 + square)
    # rounding aside, the ends are the share itself where nothing, or everything, is right
    return max(0.0, low) if correct else 0.0, min(1.0, high) if correct < total else 1.0
