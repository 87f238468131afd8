"""Figures in README's running text are those of the JSON, as the tables' are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())

pytestmark = pytest.mark.newest


def trained(name: str) -> Any:
    return read(f"evidence/trained_drafts/{name}/figures.json")


def read(place: str) -> Any:
    return json.loads((ROOT / "examples" / place).read_text(encoding="utf-8"))


def interval(found: dict[str, float], middle: str = "median") -> str:
    return f"{found[middle]:.2f} ({found['low']:.2f} to {found['high']:.2f})"


def gain(name: str) -> str:
    return f"{trained(name)['over_plain']['trimmed']['median'] - 1:.0%}".replace("%", " %")


def minutes(report: str) -> int:
    return round(read(f"evidence/trained_drafts/sql/{report}.json")["seconds"]["training"] / 60)


def against_trained_full() -> str:
    found = trained("sql")
    length = found["acceptance_length_of_trimmed_over"]["trained_full"]
    speed = interval(found["trimmed_over"]["trained_full"])
    return (
        f"the draft {interval(length, 'ratio')} of the other's acceptance length, and it is "
        f"{speed} times as fast."
    )


def minutes_of_training() -> str:
    full, trimmed = minutes("trained_full_report"), minutes("training_report")
    return f"it took {full} minutes, the draft {trimmed}."


def all_texts_the_same() -> str:
    same, of = trained("wikisql")["identical_in_float32"]
    assert same == of
    return f"In float32 all {of} texts are the target's own"


def over_extend_at_equal_acceptance() -> str:
    found = trained("qwen_wikisql")
    assert found["acceptance_length_of_trimmed_over"]["full"]["ratio"] == pytest.approx(
        1, abs=5e-3
    )
    return f"Qwen's {found['trimmed_over']['full']['median']:.2f} over `extend`"


def acceptance_while_training() -> str:
    reached = read("drafts/smollm2_wikisql/training_report.json")["best"]["acceptance_length"]
    return f"and {reached:.2f} at the end."


def cut_after_training() -> str:
    found = read("evidence/decoding/figures.json")["sets"]["sql_on_sql"]["ways"]["retrimmed"]
    return f"is on sql as fast as one that was trained trimmed ({interval(found['trimmed_over'])})"


def outside(*domains: str) -> str:
    """Say what the search's choice of the data's own answers misses."""
    sets = read("evidence/decoding/figures.json")["sets"]
    shares = [
        100 * sets[f"{name}_on_{name}"]["ways"]["optimised"]["out_of_vocabulary"]
        for name in domains
    ]
    return f"misses {min(shares):.0f} to {max(shares):.0f} %"


def sizes_like_the_fastest() -> str:
    every = read("evidence/objective/ner/figures.json")["measured"]
    alike = [one["k"] for one in every if one["of_best"]["high"] >= 1]
    others = [one["k"] for one in every if one["k"] not in alike]
    assert max(alike) < min(others)
    return f"from {min(alike)} to {max(alike):,} rows no size can be told from the fastest"


def sizes_chosen_on_sql() -> str:
    choices = read("evidence/objective_trained_full/figures.json")["choices"]
    chosen = [one["k"] for name, one in choices.items() if name != "tpe"]
    return f"{min(chosen):,} to {max(chosen):,} rows are as fast"


SENTENCES: tuple[Callable[[], str], ...] = (
    lambda: f"its draft gains {gain('general')}.",
    lambda: f"gains {gain('function_calling')}.",
    all_texts_the_same,
    acceptance_while_training,
    over_extend_at_equal_acceptance,
    against_trained_full,
    minutes_of_training,
    cut_after_training,
    sizes_like_the_fastest,
    sizes_chosen_on_sql,
    lambda: f"{outside('sql', 'function_calling', 'ner')} of what this target",
    lambda: f"{outside('math', 'code')} and is as good",
)


@pytest.mark.parametrize("sentence", SENTENCES)
def test_a_sentence_says_what_was_measured(sentence: Callable[[], str]) -> None:
    assert sentence() in README
