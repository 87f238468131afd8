"""Function calls in answers that are JSON, and whether they are the right ones; plain Python.

It stands alone: it is copied beside `call_match.py` wherever `evaluate` puts that.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_ARGUMENTS = ("arguments", "parameters", "args")
_BEGINS_JSON = re.compile(r'[\[{]\s*(?:["\[\]{}]|\Z)')
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"?|[\[\]{}]', re.DOTALL)
_DEEPER = {"[": 1, "{": 1, "]": -1, "}": -1}

Call = tuple[str, str]
"""A function's name, and its arguments as JSON in one spelling."""


def calls_in(text: str) -> list[Call] | None:
    """Read the calls that an answer makes.

    The first JSON list of calls in the text counts, or, where there is none before, all single
    calls (as in `<tool_call>` tags), whatever stands around them, such as a code fence. A call has
    `name` and `arguments` (or `parameters`, `args`), an object or that object as text; it may be
    inside `{"function": ...}`. `[]` alone makes no call. Python's spelling, `f(x=1)`, is not read.

    In the arguments, numbers are compared by value (5 is 5.0, but neither true nor "5"), texts in
    lower case, with single spaces and in Unicode's form NFKC, lists in their order, names exactly.

    Returns:
        The calls, in their order; None if there is none that can be read, or one breaks off or is
        no JSON, whatever calls stand before it (behind a list of calls nothing is read).
    """
    single: list[Call] = []
    bare = text.strip()
    if bare == "[]":
        return []
    try:
        for value in _json_values(text):
            if isinstance(value, list) and value:
                calls = [_call(item) for item in value]
                whole = [call for call in calls if call is not None]
                if len(whole) == len(calls) and not single:
                    return whole
            elif (call := _call(value)) is not None:
                single.append(call)
    except _BrokenCall:
        return None
    # An answer may be cut between a tag and its call, too.
    return None if bare.endswith("<tool_call>") else single or None


def call_match(predictions: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    """Tell how many answers make exactly the right calls, in any order.

    An argument that the reference leaves out must be left out, and every value must be the
    reference's: a leaderboard that knows several right values scores higher.

    Args:
        predictions: answers.
        references: right answers: a JSON list of calls.

    Returns:
        call_match, the share of answers whose calls are the reference's;
        low and high, its 95 % interval (Wilson's, which is not empty at 0 or 1);
        name_match, the share whose functions are, whatever the arguments;
        correct and total; unreadable, answers without a call that can be read, which are wrong.

    Raises:
        ValueError: if there is nothing to compare, the lengths differ, or a reference cannot be
            read.
    """
    if not predictions or len(predictions) != len(references):
        raise ValueError(
            "predictions and references must be as many, and at least one, got "
            f"{len(predictions)} and {len(references)}"
        )
    correct = named = unreadable = 0
    for place, (prediction, reference) in enumerate(zip(predictions, references, strict=True)):
        right = calls_in(reference)
        if right is None:
            raise ValueError(
                f"reference {place} must be a JSON list of calls, got {reference[:80]!r}"
            )
        given = calls_in(prediction)
        if given is None:
            unreadable += 1
            continue
        correct += Counter(given) == Counter(right)
        named += Counter(name for name, _ in given) == Counter(name for name, _ in right)
    low, high = _wilson(correct, len(predictions))
    return {
        "call_match": correct / len(predictions),
        "low": low,
        "high": high,
        "name_match": named / len(predictions),
        "correct": correct,
        "total": len(predictions),
        "unreadable": unreadable,
    }


class _BrokenCall(ValueError):  # noqa: N818 - the name tells what it is about
    """JSON that cannot be read and may be a call."""


def _json_values(text: str) -> Iterator[Any]:
    """Give the JSON objects and lists of a text.

    What only begins like JSON, as `{"a", "b"}` does, is passed over whole.

    Raises:
        _BrokenCall: at what begins like JSON and is never closed, as in an answer that is cut, or
            cannot be read and has a name, as a call has.
    """
    decoder = json.JSONDecoder()
    end = 0
    for match in re.finditer(r"[\[{]", text):
        if match.start() < end:
            continue
        try:
            value, end = decoder.raw_decode(text, match.start())
        except (ValueError, RecursionError):
            if not _BEGINS_JSON.match(text, match.start()):
                continue
            closed = _closed_at(text, match.start())
            if closed is None or '"name"' in text[match.start() : closed]:
                raise _BrokenCall from None
            end = closed
            continue
        yield value


def _closed_at(text: str, start: int) -> int | None:
    """Return where the bracket at `start` is closed again, None if it never is."""
    depth = 0
    # Brackets inside of texts close nothing.
    for part in _STRING_OR_BRACKET.finditer(text, start):
        depth += _DEEPER.get(part[0], 0)
        if depth == 0:
            return part.end()
    return None


def _call(value: Any) -> Call | None:
    """Return a call, or None if a value is none."""
    if not isinstance(value, Mapping):
        return None
    if isinstance(value.get("function"), Mapping):
        value = value["function"]
    name = value.get("name")
    given = [value[key] for key in _ARGUMENTS if key in value]
    if not isinstance(name, str) or not (given or len(value) == 1):
        return None
    arguments = given[0] if given else {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return None
    if not isinstance(arguments, Mapping):
        return None
    try:
        return name.strip(), json.dumps(_plain(arguments), sort_keys=True)
    except RecursionError:
        return None


def _plain(value: Any) -> Any:
    """Write what means the same in one spelling."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, str):
        return " ".join(unicodedata.normalize("NFKC", value).casefold().split())
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _wilson(correct: int, total: int) -> tuple[float, float]:
    """Return the 95 % interval of a share (Wilson, 1927)."""
    z = 1.959964
    share, square = correct / total, z * z / total
    middle = share + square / 2
    half = z * math.sqrt((share * (1 - share) + square / 4) / total)
    low, high = (middle - half) / (1 + square), (middle + half) / (1 + square)
    # rounding aside, the ends are the share itself where nothing, or everything, is right
    return max(0.0, low) if correct else 0.0, min(1.0, high) if correct < total else 1.0
