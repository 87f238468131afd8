from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vtrim_hf.batch_counting import CountRules
from vtrim_hf.chat_rendering import render_conversation
from vtrim_hf.chat_rows import read_row
from vtrim_hf.training_data import TrainingSequences, read_sequences
from vtrim_hf.training_split import answered_prompts, warn_of_shared_prompts
from vtrim_hf.vocabulary import tokenizer_fingerprint


def chat(number: int) -> dict[str, Any]:
    return {
        "messages": [
            {"role": "user", "content": f"what is {number}"},
            {"role": "assistant", "content": f"the number {number}"},
        ]
    }


def read(rows: Any, tokenizer: Any, **wishes: Any) -> tuple[TrainingSequences, TrainingSequences]:
    chosen: dict[str, Any] = {"max_length": 512, "vocab_size": 300, "progress": False, **wishes}
    return read_sequences(rows, tokenizer, **chosen)


def test_sequences_are_what_the_renderer_gives(byte_tokenizer: Any) -> None:
    rows = [chat(n) for n in range(5)]
    found, none = read(rows, byte_tokenizer)
    assert len(found) == 5
    assert len(none) == 0
    for row, item in zip(rows, found, strict=True):
        (expected,) = render_conversation(byte_tokenizer, row)
        assert item["input_ids"].tolist() == expected.input_ids.tolist()
        assert item["assistant_mask"].tolist() == expected.assistant_mask.tolist()
    assert found.assistant_tokens == sum(int(item["assistant_mask"].sum()) for item in found)
    assert found.facts()["conversations"] == 5


def test_the_target_s_own_ids_are_taken_as_they_stand(byte_tokenizer: Any) -> None:
    row = {**chat(1), "assistant_token_ids": [70, 71, 72, 2]}
    (item,) = read([row], byte_tokenizer)[0]
    assert item["input_ids"][item["assistant_mask"]].tolist() == [70, 71, 72, 2]


def test_conversations_are_held_out_by_their_hash(byte_tokenizer: Any) -> None:
    rows = [chat(n) for n in range(200)]
    train, held = read(rows, byte_tokenizer, heldout=0.2)
    rules = CountRules(vocab_size=1, heldout=0.2, blocks=1)
    expected = {read_row(row).digest() for row in rows if rules.place(read_row(row).digest())}
    assert held.conversations == expected
    assert not train.conversations & held.conversations
    assert len(train) + len(held) == 200
    again, held_again = read(rows[::-1], byte_tokenizer, heldout=0.2)
    assert held_again.conversations == expected
    assert again.conversations == train.conversations


def test_a_few_are_held_out_of_few_and_twins_stay_together(byte_tokenizer: Any) -> None:
    rows = [chat(n % 4) for n in range(8)]
    train, held = read(rows, byte_tokenizer, heldout=0.001)
    assert len(held.conversations) == 1
    assert len(held) == 2
    assert len(train) == 6


def test_all_answers_to_a_prompt_are_on_one_side(byte_tokenizer: Any) -> None:
    """[conversations were told apart with their answers]"""
    rows = [answered(chat(number), answer) for number in range(150) for answer in "abc"]
    train, held = read(rows, byte_tokenizer, heldout=0.2)
    assert not train.prompts & held.prompts
    assert not train.conversations & held.conversations
    assert len(train) + len(held) == 450
    assert (len(train.prompts), len(train)) == (150 - len(held.prompts), 3 * len(train.prompts))
    assert 15 < len(held.prompts) < 50, "prompts with many answers are held out no more often"
    again = read(rows[::-1], byte_tokenizer, heldout=0.2)[1]
    assert again.prompts == held.prompts


def answered(row: dict[str, Any], text: str) -> dict[str, Any]:
    return {"messages": [*row["messages"][:-1], {"role": "assistant", "content": text}]}


def test_prompts_are_all_that_comes_before_each_answer(byte_tokenizer: Any) -> None:
    first, second = chat(1)["messages"], chat(2)["messages"]
    said = {"role": "assistant", "content": "first of all"}

    def prompts(*messages: Any, **columns: Any) -> tuple[bytes, ...]:
        return answered_prompts(read_row({"messages": messages, **columns}))

    one, both = prompts(*first), prompts(*first, *second)
    assert len(both) == 2
    assert both[0] == one[0]
    assert prompts(*first, second[0], {"role": "assistant", "content": "else"}) == both
    assert prompts(*first, *second, {"role": "user", "content": "thanks"}) == both
    # What only a system message or the assistant comes before, nobody has asked.
    rule = {"role": "system", "content": "be brief"}
    others = [
        prompts(*second),
        prompts(*first, *second, tools=[{"name": "f"}]),
        prompts(said),
        prompts(said, *first),
        prompts(rule, said),
        prompts(rule, said, *first),
        prompts(rule, said, *second),
        *(
            answered_prompts(read_row({"prompt": "", "completion": f"of nothing {text}"}))
            for text in "ab"
        ),
    ]
    assert len({found[0] for found in (both, *others)}) == 1 + len(others)
    plain = {"prompt": first[0]["content"], "completion": "spelt otherwise"}
    assert answered_prompts(read_row(plain)) == one
    with pytest.raises(ValueError, match="only such as begin with one prompt"):
        read([answered(chat(1), text) for text in "abc"], byte_tokenizer, heldout=0.1)


def test_conversations_that_go_on_are_on_one_side(
    byte_tokenizer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """[[u1, a1] and [u1, a1, u2, a2] were told apart by their last prompts]"""

    def turns_of(number: int) -> list[Any]:
        return list(chat(number)["messages"])

    rows = [
        {"messages": [turn for later in range(turns) for turn in turns_of(number + 1000 * later)]}
        for number in range(120)
        for turns in (1, 2, 3)
    ]
    train, held = read(rows, byte_tokenizer, heldout=0.2)
    assert len(train) + len(held) == 360
    assert 3 * 10 < len(held) < 3 * 45
    assert len(train.prompts) == len(train)
    assert not train.prompts & held.prompts
    # Data that is given for evaluation is asked after each of its turns.
    judged = read([answered(chat(3), "x"), chat(700)], byte_tokenizer)[0]
    longest = read(rows[2::3], byte_tokenizer)[0]
    warn_of_shared_prompts(longest.prompts, judged.prompts)
    assert "1 of 2 prompts of the evaluation data are trained on, too" in caplog.text


def test_prompts_that_are_trained_on_and_evaluated_on_are_counted(
    byte_tokenizer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    trained = read([chat(number) for number in range(9)], byte_tokenizer)[0]
    judged = read([answered(chat(number), "x") for number in (3, 5, 70)], byte_tokenizer)[0]
    apart = read([chat(70)], byte_tokenizer)[0]
    warn_of_shared_prompts(trained.prompts, apart.prompts)
    assert not caplog.records
    warn_of_shared_prompts(trained.prompts, judged.prompts)
    assert "2 of 3 prompts of the evaluation data are trained on, too" in caplog.text


def test_what_can_only_be_counted_is_noted(byte_tokenizer: Any) -> None:
    several = {
        "messages": [*chat(1)["messages"], *chat(2)["messages"]],
        "assistant_token_ids": [[70, 71], [72, 73]],
    }
    last = {**several, "assistant_token_ids": [72, 73]}
    found = read([{"text": "no prompt"}, several, last, chat(3)], byte_tokenizer)[0]
    assert len(found) == 2
    assert found[0]["input_ids"][found[0]["assistant_mask"]].tolist() == [72, 73]
    assert [row.line for row in found.skipped] == [1, 2]


def test_long_sequences_are_cut_and_silent_ones_left_out(byte_tokenizer: Any) -> None:
    whole = read([chat(1)], byte_tokenizer)[0]
    long = int(whole.lengths[0])
    start = int(np.flatnonzero(whole.mask)[0])
    cut = read([chat(1)], byte_tokenizer, max_length=long - 2)[0]
    assert cut.ids.tolist() == whole.ids[: long - 2].tolist()
    assert cut.cut == 1
    both = [chat(1), {"messages": [{"role": "user", "content": "x"}]}]
    found = read(both, byte_tokenizer)[0]
    assert (len(found), found.silent) == (1, 1)
    with pytest.raises(ValueError, match="no assistant turn"):
        read([chat(1)], byte_tokenizer, max_length=start)


def test_malformed_rows_are_noted_and_records_passed_over(byte_tokenizer: Any) -> None:
    rows = [{"vtrim_record": "answers"}, {"odd": 1}, chat(1), "no row"]
    found = read(rows, byte_tokenizer)[0]
    assert len(found) == 1
    assert found.skipped.number == 2
    assert [row.line for row in found.skipped] == [2, 4]


def test_what_cannot_be_trained_on_is_refused(byte_tokenizer: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"(?s)no assistant turn.*fit no shape"):
        read([{"odd": 1}], byte_tokenizer)
    with pytest.raises(ValueError, match="single conversation"):
        read([chat(1)], byte_tokenizer, heldout=0.1)
    with pytest.raises(ValueError, match="lies beyond the target's width 20"):
        read([chat(1)], byte_tokenizer, vocab_size=20)
    with pytest.raises(FileNotFoundError, match="no file or folder"):
        read(tmp_path / "none.jsonl", byte_tokenizer)
    other = {**chat(1), "assistant_token_ids": [70, 71], "tokenizer_hash": "0" * 64}
    with pytest.raises(ValueError, match="another tokenizer"):
        read([other], byte_tokenizer)
    own = {**other, "tokenizer_hash": tokenizer_fingerprint(byte_tokenizer)}
    assert len(read([own], byte_tokenizer)[0]) == 1


def test_fingerprints_follow_the_content(byte_tokenizer: Any, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(chat(n)) + "\n" for n in range(3)))
    one = read(path, byte_tokenizer)[0]
    assert one.fingerprint == read([chat(n) for n in range(3)], byte_tokenizer)[0].fingerprint
    assert one.fingerprint != read([chat(n) for n in range(4)], byte_tokenizer)[0].fingerprint
    masks = TrainingSequences(one.ids, ~one.mask, one.starts)
    assert masks.fingerprint != one.fingerprint
