"""What a domain's conversations are for: every one has one part, decided by its hash."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tiny_models import make_byte_tokenizer
from vtrim_hf.batch_counting import CountRules
from vtrim_hf.chat_rows import read_row
from vtrim_hf.measuring_step import prompt_keys, read_prompts
from vtrim_hf.recipe import Domain
from vtrim_hf.recipe_rows import divided, held_out_rows, line_of
from vtrim_hf.training_split import answered_prompts


def chat(number: int) -> dict[str, Any]:
    return {
        "messages": [
            {"role": "user", "content": f"what is {number}"},
            {"role": "assistant", "content": f"the number {number}"},
        ]
    }


def digests(lines: tuple[str, ...]) -> set[bytes]:
    return {read_row(json.loads(line)).digest() for line in lines}


@pytest.mark.parametrize("heldout", [0.05, 0.2, 0.5])
def test_without_test_data_the_held_out_share_is_measured_but_a_quarter(heldout: float) -> None:
    rows = [chat(number) for number in range(300)]
    domain = Domain("a", ("x",), heldout=heldout)
    parts = divided(domain, [rows])
    training, evaluation, measured = (
        digests(part) for part in (parts.training, parts.evaluation, parts.measured)
    )
    assert len(training) + len(evaluation) + len(measured) == 300
    assert len(training | evaluation | measured) == 300
    apart = {read_row(row).digest() for row in held_out_rows(domain, [rows])}
    rules = CountRules(300, heldout=heldout)
    assert apart == {d for row in rows if rules.place(d := read_row(row).digest()) >= rules.blocks}
    assert evaluation | measured == apart
    assert len(evaluation) == max(1, len(apart) // 4)
    # Whatever order they come in, and however the parts are read.
    assert divided(domain, [rows[150:], rows[:150]]) == parts


def test_with_test_data_one_in_twenty_chooses() -> None:
    rows = [chat(number) for number in range(1000)]
    parts = divided(Domain("a", ("x",), test="y"), [rows])
    assert not parts.measured
    assert 30 < len(parts.evaluation) < 70
    assert len(parts.training) + len(parts.evaluation) == 1000
    assert not digests(parts.training) & digests(parts.evaluation)


@pytest.mark.parametrize("number", [2, 3, 8])
def test_of_few_one_chooses_and_one_is_trained_on(number: int) -> None:
    for domain in (Domain("a", ("x",), test="y"), Domain("a", ("x",), heldout=0.0)):
        parts = divided(domain, [[chat(n) for n in range(number)]])
        assert 1 <= len(parts.evaluation) <= max(1, number // 4)
        assert len(parts.evaluation) + len(parts.training) == number
    assert not divided(Domain("a", ("x",), test="y"), [[chat(1)]]).training


def test_a_single_held_out_conversation_is_measured() -> None:
    rules = CountRules(300, heldout=0.2)
    rows = [chat(number) for number in range(60)]
    apart = [row for row in rows if rules.place(read_row(row).digest()) >= rules.blocks]
    others = [row for row in rows if row not in apart]
    parts = divided(Domain("a", ("x",)), [[*others, apart[0]]])
    assert digests(parts.measured) == {read_row(apart[0]).digest()}
    assert parts.evaluation
    assert len(parts.training) + len(parts.evaluation) == len(others)


def test_twins_stay_together_and_the_silent_are_only_measured() -> None:
    silent = [{"messages": [{"role": "user", "content": f"and {n}?"}]} for n in range(60)]
    rows = [*[chat(number % 30) for number in range(60)], *silent]
    parts = divided(Domain("a", ("x",)), [rows])
    kept = (*parts.training, *parts.evaluation)
    assert all('"assistant"' in line for line in kept)
    assert not digests(parts.training) & digests(parts.evaluation)
    assert len(kept) == 2 * len(digests(kept))
    assert any('"assistant"' not in line for line in parts.measured)


@pytest.mark.parametrize("test", [None, "y"])
def test_all_answers_to_a_prompt_are_of_one_kind(test: str | None) -> None:
    """[conversations were told apart with their answers]"""
    rows = [
        {"messages": [chat(number)["messages"][0], {"role": "assistant", "content": answer}]}
        for number in range(200)
        for answer in "abc"
    ]
    domain = Domain("a", ("x",), test=test, heldout=0.2)
    parts = divided(domain, [rows])
    kinds = [
        {one for line in lines for one in answered_prompts(read_row(json.loads(line)))}
        for lines in (parts.training, parts.evaluation, parts.measured)
    ]
    assert sum(map(len, kinds)) == len(set.union(*kinds)) == 200
    assert len(parts.training) == 3 * len(kinds[0])
    assert len(parts.evaluation) == 3 * len(kinds[1])
    assert 0.7 * 200 < len(kinds[0]) < 0.98 * 200
    # What is measured is, besides, held out of the counts.
    apart = {read_row(row).digest() for row in held_out_rows(domain, [rows])}
    assert digests(parts.measured) <= apart
    assert bool(parts.measured) is (test is None)
    assert divided(domain, [rows[::-1]]) == parts


@pytest.mark.parametrize("test", [None, "y"])
def test_conversations_that_go_on_are_of_one_kind(test: str | None) -> None:
    """[they were told apart by their last prompts]"""
    rows = [
        {"messages": [*chat(number)["messages"], *chat(number + 1000)["messages"]][:turns]}
        for number in range(200)
        for turns in (2, 3, 4)
    ]
    parts = divided(Domain("a", ("x",), test=test, heldout=0.2), [rows])
    kinds = [
        {one for line in lines for one in answered_prompts(read_row(json.loads(line)))}
        for lines in (parts.training, parts.evaluation, parts.measured)
    ]
    assert sum(map(len, kinds)) == len(set.union(*kinds))
    assert len(parts.training) == 3 * len(kinds[0]) / 2
    assert len(parts.evaluation) == 3 * len(kinds[1]) / 2
    assert len(kinds[0]) > 2 * 0.6 * 200


def test_records_and_odd_rows_are_left_out_and_foreign_columns_do_not_stop() -> None:
    rows = [{"vtrim_record": "answers"}, {"odd": 1}, *({**chat(n), "x": {1, n}} for n in (2, 3))]
    parts = divided(Domain("a", ("x",), test="y"), [rows])
    assert len(parts.training) + len(parts.evaluation) == 2
    assert json.loads(line_of({"a": "ü", "b": b"x"})) == {"a": "ü", "b": "b'x'"}


def test_every_answered_turn_is_a_prompt_that_was_trained_on(tmp_path: Path) -> None:
    turns = [
        {"role": role, "content": text}
        for role, text in (
            ("user", "one"),
            ("assistant", "1"),
            ("user", "two"),
            ("assistant", "2"),
        )
    ]
    place = tmp_path / "rows.jsonl"
    place.write_text(json.dumps({"messages": turns}) + "\n", encoding="utf-8")
    tokenizer = make_byte_tokenizer()
    seen = prompt_keys([place], tokenizer)
    assert len(seen) == 2
    other = tmp_path / "test.jsonl"
    rows = [{"messages": turns[:1]}, {"messages": [{"role": "user", "content": "three"}]}]
    other.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    assert len(read_prompts(other, tokenizer, 9, without=seen)) == 1
    with pytest.raises(ValueError, match="prompt"):
        read_prompts(place, tokenizer, 9, without=seen)
