"""How facts are said on a card."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vtrim_hf.card_words import (
    FILTERS,
    cell,
    coverage_rows,
    curve_words,
    is_seen,
    machine_words,
    measure_command,
    setting_rows,
    visible,
)

pytestmark = pytest.mark.newest  # words of our own, no dependency is called


def training(*lengths: float, best: int | None = None) -> dict[str, Any]:
    """Facts of a training with these evaluations, at steps 1, 2, ..."""
    curve = [
        {"step": at, "tokens": 1000 * at, "acceptance_length": length}
        for at, length in enumerate(lengths, 1)
    ]
    return {"settings": {}, "curve": curve} | ({} if best is None else {"best_step": best})


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({}, ""),
        (training(2.0, best=1), ""),
        (
            training(1.5, 2.0, best=2),
            "On the held-out conversations it was 1.50 after 1,000 tokens, 2.00 after 2,000 "
            "tokens; the checkpoint of step 2 was kept, the last one.",
        ),
        (
            training(1.5, 2.0, best=1),
            "On the held-out conversations it was 1.50 after 1,000 tokens, 2.00 after 2,000 "
            "tokens; the checkpoint of step 1 was kept, the best one.",
        ),
        (
            training(1.5, 2.0),
            "On the held-out conversations it was 1.50 after 1,000 tokens, 2.00 after 2,000 "
            "tokens.",
        ),
    ],
)
def test_the_course_of_a_training(facts: dict[str, Any], said: str) -> None:
    assert curve_words(facts) == said


def test_a_training_that_made_nothing_better_says_so() -> None:
    facts = training(2.0, 1.5)
    facts["curve"].insert(0, {"step": 0, "tokens": 0, "acceptance_length": 2.5})
    said = curve_words({**facts, "best_step": 0})
    assert "it was 2.50 after 0 tokens, 2.00 after 1,000 tokens" in said
    assert said.endswith("; the draft that it started from was kept, no checkpoint was better.")


def test_a_long_course_is_told_in_five_points_at_most() -> None:
    text = curve_words(training(*[1 + at / 100 for at in range(200)], best=151))
    assert text.count(" after ") == 5
    assert "2.50 after 151,000 tokens" in text


def test_settings_that_are_not_known_have_no_row() -> None:
    assert setting_rows({}) == []
    assert setting_rows({"settings": {"per_device_train_batch_size": 4, "bf16": False}}) == [
        ("sequences a step", "4"),
        ("computed in", "float32"),
    ]


@pytest.mark.parametrize(
    ("start", "said"),
    [
        ({"id": "me/first", "hash": "c" * 40}, f"me/first, commit {'c' * 12}"),
        ({"hash": "a" * 64}, f"a draft of the hash {'a' * 12}"),
    ],
)
def test_what_was_trained_on_is_told(start: dict[str, str], said: str) -> None:
    assert setting_rows({"start": start}) == [("trained on from", said)]


def test_a_command_names_only_what_was_set() -> None:
    facts: dict[str, Any] = {"target": {}, "decoding": {"prompts": 3, "settings": {}}}
    assert measure_command("me/x", facts) == "vtrim measure TARGET me/x PROMPTS --limit 3"
    assert measure_command("me/x", {"target": {}}) is None


def test_a_command_measures_a_branch_and_with_its_threshold() -> None:
    decoding = {"prompts": 3, "settings": {}, "assistant_confidence_threshold": 0.0}
    command = measure_command("me/x", {"target": {"id": "me/t"}, "decoding": decoding}, "a;b")
    assert command == "vtrim measure me/t me/x PROMPTS --revision 'a;b' --limit 3 --threshold 0.0"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\u202eabc\u2066", r"`\u202eabc\u2066`"),
        ("a\u200bb\u200d\ufeff", r"`a\u200bb\u200d\ufeff`"),
        ("\u00a0\u2028\u3164\u2800", r"`\u00a0\u2028\u3164\u2800`"),
        ("\U000e0041\ufe0f", r"`\U000e0041\ufe0f`"),
        ("\u0301e", r"`\u0301e`"),
        ("\x00\x1b[31m\n\t", r"`\u0000\u001b[31m\n\t`"),
        (r"\u202e", r"`\\u202e`"),
        ("\\", r"`\\`"),
        ("\\|", r"`\\\|`"),
        ("a|b", r"`a\|b`"),
        ("``a`", "``` ``a` ```"),
        ("<script>&amp;", "`<script>&amp;`"),
        ("", ""),
        ("é 数学 ❤", "`é 数学 ❤`"),
    ],
)
def test_a_token_is_shown_as_it_is(text: str, shown: str) -> None:
    """Nothing in it breaks a table, hides, or moves what stands beside it."""
    assert FILTERS["token"](text) == shown


@settings(deadline=None)
@given(st.text(min_size=1, max_size=20))
def test_no_token_leaves_its_cell(text: str) -> None:
    shown = FILTERS["token"](text)
    assert all(is_seen(sign) for sign in shown)
    fence = shown[: len(shown) - len(shown.lstrip("`"))]
    assert shown.endswith(fence)
    assert shown.count(fence) >= 2
    assert fence not in re.findall(r"`+", shown[len(fence) : -len(fence)])
    assert not re.search(r"(?<!\\)(?:\\\\)*\|", shown), "each bar has a backslash of its own"


def test_a_name_neither_hides_nor_turns_its_row() -> None:
    assert cell("a\u202eb\u200b|<b>") == r"a\\u202eb\\u200b\|\<b\>"
    assert visible("plain text") == "plain text"
    assert visible("") == ""


def test_other_words() -> None:
    assert machine_words({}) == "an unknown machine"
    assert machine_words({"gpu": "G", "threads": 2}) == "G, threads 2"
    one = {"domains": {"a": {}}, "search": {"share": 1.0}}
    assert [row["name"] for row in coverage_rows(one)] == ["a"]
    two = {"domains": {"a": {}, "b": {}}, "search": {"share": 1.0}}
    assert [row["name"] for row in coverage_rows(two)] == ["a", "b", "all"]
