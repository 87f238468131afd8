"""How facts are said on a card."""

from __future__ import annotations

from typing import Any

import pytest

from vtrim_hf.card_words import (
    coverage_rows,
    curve_words,
    machine_words,
    measure_command,
    setting_rows,
)


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


def test_a_command_names_only_what_was_set() -> None:
    facts: dict[str, Any] = {"target": {}, "decoding": {"prompts": 3, "settings": {}}}
    assert measure_command("me/x", facts) == "vtrim measure TARGET me/x PROMPTS --limit 3"
    assert measure_command("me/x", {"target": {}}) is None


def test_other_words() -> None:
    assert machine_words({}) == "an unknown machine"
    assert machine_words({"gpu": "G", "threads": 2}) == "G, threads 2"
    one = {"domains": {"a": {}}, "search": {"share": 1.0}}
    assert [row["name"] for row in coverage_rows(one)] == ["a"]
    two = {"domains": {"a": {}, "b": {}}, "search": {"share": 1.0}}
    assert [row["name"] for row in coverage_rows(two)] == ["a", "b", "all"]
