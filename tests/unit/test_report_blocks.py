"""Values as a page says them: nothing hidden, nothing cut without a word."""

from __future__ import annotations

import pytest

from vtrim_hf.report_blocks import (
    MOST_ROWS,
    Cell,
    facts,
    grid,
    interval,
    number,
    share,
    shown,
    shown_lines,
    text,
    token,
    value_cell,
)

pytestmark = pytest.mark.newest  # text of our own, no dependency is called


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("plain", "plain"),
        ("ünï 漢字", "ünï 漢字"),
        ("a\nb", "a\\u000ab"),
        ("a\x00b\x1b[31m", "a\\u0000b\\u001b[31m"),
        ("abc\u202egnp", "abc\\u202egnp"),
        ("\ud800", "\\ud800"),
        (12, "12"),
    ],
)
def test_shown_hides_nothing(value: object, said: str) -> None:
    assert shown(value) == said


def test_shown_says_what_it_cut() -> None:
    assert shown("x" * 401) == "x" * 400 + "… (401 characters)"
    assert shown("x" * 400) == "x" * 400


def test_lines_stay_lines() -> None:
    assert shown_lines("a\r\nb\x07\tc") == "a\nb\\u0007  c"
    assert shown_lines("abcdef", 3) == "abc\n…"


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        (True, Cell("yes")),
        (12_345, Cell("12,345", "number")),
        (10_000.0, Cell("10,000", "number")),
        (0.123456, Cell("0.1235", "number")),
        (float("nan"), Cell("nan")),
        (float("inf"), Cell("inf")),
        (10**400, Cell(shown(10**400))),
        ([1, [2, "x"]], Cell("1, 2, x")),
        ({"a": 1, "b": {"c": None}}, Cell("a 1, b c ")),
        (None, Cell("")),
    ],
)
def test_any_json_value(value: object, cell: Cell) -> None:
    assert value_cell(value) == cell


def test_numbers_and_what_is_none() -> None:
    assert number(2.345, ".1f", "ms") == Cell("2.3 ms", "number")
    assert number(1234) == Cell("1,234", "number")
    assert number(1234, "d") == Cell("1234", "number")
    assert number("<b>") == Cell("<b>")
    assert number(None) == Cell("")
    assert share(0.12345) == Cell("12.35 %", "number")
    assert share("most") == Cell("most")
    assert interval([0.5, 0.75], 100, ".1f") == Cell("50.0 to 75.0", "number")
    assert interval([0.5]) == text([0.5])
    assert interval(None) == Cell("")


def test_blanks_of_tokens_are_seen() -> None:
    assert token(" a ") == Cell('" a "', "code")
    assert token(None).text == ""


def test_facts_leave_out_what_says_nothing() -> None:
    assert facts("F", [("a", text("b")), ("c", text(None))]).rows == (("a", Cell("b")),)


def test_a_long_table_says_what_it_left_out() -> None:
    made = grid("G", ["n"], [[number(at)] for at in range(MOST_ROWS + 5)], "Counted.")
    assert len(made.rows) == MOST_ROWS
    assert made.remark == "Counted. 5 more rows are in the file."
    assert made.columns == (Cell("n", "number"),)
