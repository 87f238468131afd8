"""The number that an answer ends in: how data and models word it, and the share that is right."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vtrim_hf.metrics.number_match.final_numbers import final_number, number_match

# As the data words it, and as a small model words it.
ANSWERS = [
    ("Ahito ran the rest = 52 - 8 - 28 = <<52-8-28=16>>16 miles\n#### 16", 16),
    ("They earn <<5000*290=1450000>>$1,450,000.\n#### 1,450,000", 1_450_000),
    ("The total is 21 + 40 = 42 animals.\n#### 42\nThe answer is: 42", 42),
    ("#### 5\nNo, that was wrong.\n#### 6", 6),
    ("#### $18 a day", 18),
    ("#### none, but 7 apples before", 7),  # the last mark is followed by a number in its line
    ("The answer is 2 + 6 = 8 cookies are left.", 8),
    ("The answer is 8. That is 3 more.", 8),
    ("The answer is 8 of the 12 boxes.", 8),
    ("The answer is 10.6.", Fraction("10.6")),
    ("**Answer:** 12\nThere are 5.", 12),
    ("Answer to all: 12, and not 5.", 5),
    ("The answer was 3. The final answer is -4!", -4),
    ("The answer is x = five.", None),
    ("So \\boxed{72} clips in May, 24 fewer.", 72),
    ("Bruno will have 2.5 pens.", Fraction(5, 2)),
    ("She has 3/4 of it", Fraction(3, 4)),
    ("Half of 16/2", 8),
    ("52-8", 8),
    ("(5)-3", 3),
    ("from 10 to -3", -3),
    ("from 10 to \u22123 degrees", -3),
    ("a loss of -$1,200.50.", Fraction("-1200.5")),
    ("it is $.50", Fraction(1, 2)),
    ("1,2,3", 3),
    ("1,23", 23),
    ("12,345,678", 12_345_678),
    ("100%", 100),
    ("7, not 5/0", 7),
    ("", None),
    ("no number at all", None),
    ("three", None),
]


@pytest.mark.parametrize(("text", "expected"), ANSWERS)
def test_the_final_number(text: str, expected: int | Fraction | None) -> None:
    assert final_number(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("so 5\n#### 7\nthe answer is 8", 7), ("####", None), ("the answer is 8", None), ("9", None)],
)
def test_strictly_only_what_is_marked(text: str, expected: int | None) -> None:
    assert final_number(text, strict=True) == expected


@settings(deadline=None)
@given(st.integers(-(10**12), 10**12), st.sampled_from(["", ".", ".0", ".00 dollars", " apples!"]))
def test_any_whole_number_is_read_however_it_is_written(number: int, end: str) -> None:
    for written in (f"{number}", f"{number:,}"):
        for text in (f"#### {written}", f"The answer is {written}", f"2 of them, then {written}"):
            assert final_number(text + end) == number


@settings(deadline=None)
@given(st.text("0123456789.,/-$#=\\boxed{} answer is\n", max_size=60))
def test_no_text_breaks_it(text: str) -> None:
    found = final_number(text)
    assert found is None or isinstance(found, Fraction)


def test_numbers_beyond_all_measure_are_none() -> None:
    assert final_number("7 and " + "9" * 5000) == 7


def test_the_share_and_its_interval() -> None:
    found = number_match(["so 16", "#### 3", "none", "1,000"], ["#### 16", "4", "5", "1000.0"])
    assert found["number_match"] == 0.5
    assert (found["correct"], found["total"], found["unanswered"]) == (2, 4, 1)
    assert found["low"] == pytest.approx(0.1500, abs=1e-4)  # Wilson's, of 2 in 4
    assert found["high"] == pytest.approx(0.8500, abs=1e-4)
    strict = number_match(["so 16", "#### 4"], ["16", "4"], strict=True)
    assert (strict["number_match"], strict["unanswered"]) == (0.5, 1)


@pytest.mark.parametrize(("right", "ends"), [(0, (0.0, 0.2775)), (10, (0.7225, 1.0))])
def test_the_interval_is_not_empty_where_nothing_or_all_is_right(
    right: int, ends: tuple[float, float]
) -> None:
    found = number_match(["5"] * right + ["no"] * (10 - right), ["5"] * 10)
    assert (found["low"], found["high"]) == pytest.approx(ends, abs=1e-4)
    assert (found["low"] == 0.0) is (right == 0)
    assert (found["high"] == 1.0) is (right == 10)


def test_refusals() -> None:
    with pytest.raises(ValueError, match="at least one, got 0 and 0"):
        number_match([], [])
    with pytest.raises(ValueError, match="got 2 and 1"):
        number_match(["1", "2"], ["1"])
    with pytest.raises(ValueError, match="reference 1 must hold a number, got 'none'"):
        number_match(["1", "2"], ["1", "none"])
