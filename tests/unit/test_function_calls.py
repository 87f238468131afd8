"""Function calls in JSON answers: the shapes that are read, what is the same call, refusals."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vtrim_hf.metrics.call_match.function_calls import call_match, calls_in

ADD = [("add", '{"a": 1, "b": "x y"}')]
ONE = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
CUT = [
    "\n<tool_call>",
    " {",
    " [",
    ' {"na',
    ' {"name": "sub"',
    ' <tool_call>{"name": "sub", "argum',
    ' {"name": "sub", "arguments": {"a": tr',
    ' {"name": "sub", "arguments": {"a": "so }} \\',
    ' {"name": "sub", "arguments": {"a": 1}',
    ' [{"name": "sub", "arguments": {"a": 1}},',
]


@pytest.mark.parametrize(
    "text",
    [
        '[{"name": "add", "arguments": {"a": 1, "b": "x y"}}]',
        '{"name": " add ", "arguments": {"b": " X  y", "a": 1.0}}',
        'Sure [1]:\n```json\n[{"name": "add", "parameters": {"a": 1, "b": "x y"}}]\n```',
        '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": "x y"}}\n</tool_call>',
        '[{"type": "function", "function": {"name": "add", '
        '"arguments": "{\\"a\\": 1, \\"b\\": \\"x y\\"}"}}]',
        'The schema is {"type": "object"}. {"name": "add", "args": {"a": 1, "b": "x y"}}',
        '[{"name": "add", "arguments": {"a": 1, "b": "x y"}}] [{"name": "sub", "arguments": {}}]',
        'x = [] {"name": "add", "arguments": {"a": 1, "b": "x y"}}',
    ],
)
def test_shapes_that_are_read(text: str) -> None:
    assert calls_in(text) == ADD


@pytest.mark.parametrize(
    "prose",
    [
        "It adds [1] and {x}.",
        'As in {"a", "b"} and [[link]] and {{name}}.',
        'The schema is {"type": "object", ...}.',
        "So: add(a=1), x = [], {}",
    ],
)
def test_prose_around_calls_is_passed_over(prose: str) -> None:
    one = [("add", '{"a": 1}')]
    assert calls_in(f"{prose} {ONE}") == calls_in(f"{ONE} {prose}") == one
    assert calls_in(f"{prose} [{ONE[11:-12]}] {prose}") == one


def test_several_calls() -> None:
    two = [("f", "{}"), ("g", '{"x": [1, 2]}')]
    assert calls_in('[{"name": "f"}, {"name": "g", "arguments": {"x": [1, 2]}}]') == two
    calls = ('{"name": "f", "arguments": {}}', '{"name": "g", "arguments": {"x": [1, 2]}}')
    assert calls_in("".join(f"<tool_call>{call}</tool_call>" for call in calls)) == two
    assert calls_in(" [] ") == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "add(a=1)",
        "[add(a=1)]",
        "x = []",
        '{"add": {"a": 1}}',
        '[{"name": "add", "arguments": {"a": 1}}, "then sub"]',
        '{"name": "add", "arguments": [1]}',
        '{"name": "add", "arguments": "a = 1"}',
        '{"name": "add", "arguments": "[1]"}',
        '{"name": ["add"], "arguments": {}}',
        '[{"name": "add", "arguments": {"a": 1}}, {"name": "su',  # cut
        '[{"name": "add", "arguments": {"a": 1}}',
        # One that breaks off behind one that can be read.
        *(ONE + rest for rest in CUT),
        # No JSON, but a call: an engine would refuse the answer.
        ONE + ' {"name": "sub", "arguments": {"a": x}}',
        '[{"name": "add", "arguments": {"a": 1}}, then sub]',
        '{"calls": ' * 100_000,
    ],
)
def test_what_cannot_be_read(text: str) -> None:
    assert calls_in(text) is None


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("5", "5.0", True),
        ("true", "1", False),
        ('"5"', "5", False),
        ('"New  York "', '"new york"', True),
        ('"NewYork"', '"New York"', False),
        ("[1, 2]", "[2, 1]", False),
        ('{"a": 1, "b": 2.0}', '{"b": 2, "a": 1}', True),
        ("null", "0", False),
        ("0.1", "0.1", True),
    ],
)
def test_what_is_the_same_argument(one: str, other: str, same: bool) -> None:
    begin, end = '[{"name": "f", "arguments": {"x": ', "}}]"
    assert (calls_in(begin + one + end) == calls_in(begin + other + end)) is same


def test_shares_by_hand() -> None:
    right = '[{"name": "f", "arguments": {"x": 1}}, {"name": "f", "arguments": {"x": 2}}]'
    answers = [
        '[{"name": "f", "arguments": {"x": 2}}, {"name": "f", "arguments": {"x": 1}}]',
        '[{"name": "f", "arguments": {"x": 1}}]',
        '[{"name": "f", "arguments": {"x": 1}}, {"name": "f", "arguments": {"x": 1}}]',
        "f(x=1), f(x=2)",
    ]
    found = call_match(answers, [right] * 4)
    assert found["call_match"] == 1 / 4
    assert found["name_match"] == 2 / 4
    assert (found["correct"], found["total"], found["unreadable"]) == (1, 4, 1)
    assert found["low"] == pytest.approx(0.0456, abs=1e-4)  # Wilson's, of 1 in 4
    assert found["high"] == pytest.approx(0.6994, abs=1e-4)
    assert call_match(["[]", "no"], ["[]", "[]"])["correct"] == 1


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


@settings(deadline=None)
@given(st.lists(st.dictionaries(st.text(max_size=3), VALUES, max_size=3), min_size=1, max_size=3))
def test_what_is_right_matches_itself_in_any_order(arguments: list[object]) -> None:
    calls = [{"name": "f", "arguments": one} for one in arguments]
    found = call_match([f"So: {json.dumps(calls[::-1])}."], [json.dumps(calls)])
    assert found["call_match"] == found["name_match"] == 1.0


@settings(deadline=None)
@given(st.text('{}[]",:a1 \n', max_size=40))
def test_no_text_breaks_it(text: str) -> None:
    found = calls_in(text)
    assert found is None or isinstance(found, list)


def test_refusals() -> None:
    with pytest.raises(ValueError, match="at least one, got 0 and 0"):
        call_match([], [])
    with pytest.raises(ValueError, match="got 2 and 1"):
        call_match(["[]", "[]"], ["[]"])
    with pytest.raises(ValueError, match="reference 0 must be a JSON list of calls, got 'f"):
        call_match(["[]"], ["f(x=1)"])
