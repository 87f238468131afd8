"""The target answers prompts: its own ids, resumable, never mixed."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from chat_templates import chat
from tiny_models import IM_END_ID, make_tiny
from vtrim_hf import target_answers
from vtrim_hf.embedded_models import load_model
from vtrim_hf.target_answers import answer_with_target
from vtrim_hf.token_counts import TokenCounts

EXAMPLES = Path(__file__).parents[2] / "examples" / "data" / "wikisql"
PROMPTS = ["the quick fox", "SELECT name", "what is the name of the city", "dog", "é 🦊 !", "a b"]
ROWS = [{"messages": chat(prompt, "people say this")} for prompt in PROMPTS]


@pytest.fixture
def target() -> Any:
    return make_tiny("llama", eos_token_id=IM_END_ID)


def answer(target: Any, tokenizer: Any, path: Path, rows: Any = ROWS, **kwargs: Any) -> Any:
    kwargs = {"batch_size": 2, "max_new_tokens": 12, "progress": False, **kwargs}
    return answer_with_target(target, tokenizer, rows, path, **kwargs)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def answers(path: Path) -> dict[str, dict[str, Any]]:
    return {row["prompt_hash"]: row for row in lines(path) if "prompt_hash" in row}


def alone(target: Any, tokenizer: Any, messages: list[Any], new: int = 12) -> list[int]:
    """What the target says without batch, padding or file."""
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    with torch.no_grad():
        output = target.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=new)
    said: list[int] = output[0, len(ids) :].tolist()
    return said


@pytest.mark.parametrize("batch_size", [1, 4])
def test_answers_are_what_the_target_says_alone(
    target: Any, byte_tokenizer: Any, tmp_path: Path, batch_size: int
) -> None:
    path = tmp_path / "a.jsonl"
    result = answer(target, byte_tokenizer, path, batch_size=batch_size)
    assert (result.answered, result.added) == (6, 6)
    found = {row["messages"][0]["content"]: row for row in answers(path).values()}
    assert set(found) == set(PROMPTS)
    for prompt, row in found.items():
        said = alone(target, byte_tokenizer, chat(prompt))
        assert row["assistant_token_ids"] == said
        assert row["finished"] == (said[-1] == IM_END_ID)
        assert row["messages"][-1]["role"] == "assistant"
        text = byte_tokenizer.decode(said[:-1] if row["finished"] else said)
        assert row["messages"][-1]["content"] == text
    assert result.tokens == sum(len(row["assistant_token_ids"]) for row in found.values())
    assert lines(path)[-1] == {"vtrim_record": "finished", "answered": 6}


def test_an_answer_ends_with_its_end_of_turn_token(byte_tokenizer: Any, tmp_path: Path) -> None:
    """Padding that follows it in a batch is nobody's word."""
    target = make_tiny("llama", eos_token_id=list(range(3, 60)))
    answer(target, byte_tokenizer, tmp_path / "a.jsonl", batch_size=6, max_new_tokens=40)
    rows = list(answers(tmp_path / "a.jsonl").values())
    lengths = {len(row["assistant_token_ids"]) for row in rows}
    assert len(lengths) > 1
    for row in rows:
        ends = [3 <= i < 60 for i in row["assistant_token_ids"]]
        assert sum(ends) == row["finished"]
        assert ends[-1] == row["finished"]


def test_the_targets_words_are_counted_as_they_stand(
    target: Any, byte_tokenizer: Any, tmp_path: Path
) -> None:
    path = tmp_path / "a.jsonl"
    result = answer(target, byte_tokenizer, path)
    counts = TokenCounts.from_dataset(path, byte_tokenizer, cache_dir=False, progress=False)
    said = np.concatenate([row["assistant_token_ids"] for row in answers(path).values()])
    assert counts.array("all").tolist() == np.bincount(said, minlength=300).tolist()
    assert counts.total("all") == result.tokens
    assert counts.conversations("all") == 6


def test_a_killed_run_goes_on(
    target: Any, byte_tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, path = tmp_path / "whole.jsonl", tmp_path / "a.jsonl"
    answer(target, byte_tokenizer, whole)
    calls, generate = [], target.generate

    def dies(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return generate(*args, **kwargs)

    monkeypatch.setattr(target, "generate", dies)
    with pytest.raises(KeyboardInterrupt):
        answer(target, byte_tokenizer, path)
    assert len(answers(path)) == 4
    assert lines(path)[-1].get("vtrim_record") is None
    with path.open("ab") as file:  # and the kill tore a line apart
        file.write(b'{"messages": [{"role": "us')
    result = answer(target, byte_tokenizer, path)
    assert (result.answered, result.added) == (6, 2)
    assert answers(path) == answers(whole)
    assert lines(path)[-1] == {"vtrim_record": "finished", "answered": 6}
    before = path.read_bytes()
    assert answer(target, byte_tokenizer, path).added == 0
    assert path.read_bytes() == before


@pytest.mark.parametrize("cut", [1, 40, -1])
def test_a_torn_header_is_written_again(
    target: Any, byte_tokenizer: Any, tmp_path: Path, cut: int
) -> None:
    path = tmp_path / "a.jsonl"
    answer(target, byte_tokenizer, path, rows=ROWS[:1])
    header = path.read_bytes().split(b"\n")[0] + b"\n"
    path.write_bytes(header[:cut])
    assert answer(target, byte_tokenizer, path).answered == 6


def test_more_data_adds_to_a_finished_file(
    target: Any, byte_tokenizer: Any, tmp_path: Path
) -> None:
    path = tmp_path / "a.jsonl"
    answer(target, byte_tokenizer, path, rows=ROWS[:2])
    result = answer(target, byte_tokenizer, path)
    assert (result.answered, result.added) == (6, 4)
    counts = TokenCounts.from_dataset(path, byte_tokenizer, cache_dir=False, progress=False)
    assert counts.conversations("all") == 6


def test_answers_are_never_mixed(target: Any, byte_tokenizer: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    answer(target, byte_tokenizer, path)
    before = path.read_bytes()
    other_tokenizer = copy.deepcopy(byte_tokenizer)
    other_tokenizer.add_tokens(["fox"])
    other_template = copy.deepcopy(byte_tokenizer)
    other_template.chat_template += " "
    attempts: list[tuple[Any, Any, dict[str, Any], str]] = [
        (make_tiny("llama", seed=1, eos_token_id=IM_END_ID), byte_tokenizer, {}, "other weights"),
        (make_tiny("llama", rms_norm_eps=1e-3, eos_token_id=2), byte_tokenizer, {}, "config"),
        (copy.deepcopy(target).to(torch.bfloat16), byte_tokenizer, {}, "dtype: 'float32' there"),
        (target, byte_tokenizer, {"max_new_tokens": 5}, "generation: "),
        (target, byte_tokenizer, {"do_sample": True}, "generation: "),
        (target, other_tokenizer, {}, "another target or other settings"),
        (target, other_template, {}, "template: "),
    ]
    for model, tokenizer, options, changed in attempts:
        with pytest.raises(
            ValueError, match=f"another target or other settings.*{changed}|{changed}"
        ):
            answer(model, tokenizer, path, **options)
    assert path.read_bytes() == before
    assert answer(target, byte_tokenizer, path, batch_size=3).added == 0


@pytest.mark.parametrize(
    "content", ['{"messages": []}\n', "text", "\n", '{"vtrim_record": "answers"}\n']
)
def test_a_foreign_file_is_left_alone(
    target: Any, byte_tokenizer: Any, tmp_path: Path, content: str
) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(content)
    with pytest.raises(ValueError, match="exists and is no file of answers"):
        answer(target, byte_tokenizer, path)
    assert path.read_text() == content


def test_damage_in_the_middle_is_named(target: Any, byte_tokenizer: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    answer(target, byte_tokenizer, path)
    damaged = path.read_bytes().split(b"\n")
    damaged[2] = b"garbage"
    path.write_bytes(b"\n".join(damaged))
    with pytest.raises(ValueError, match=r"a\.jsonl:3 is damaged in the middle"):
        answer(target, byte_tokenizer, path)


def test_what_is_answered_of_a_conversation(
    target: Any, byte_tokenizer: Any, tmp_path: Path
) -> None:
    rows = [
        {"messages": chat("one", "First", "two", "Second"), "tools": [{"name": "f"}]},
        {"messages": chat("open", "First", "question")},
        {"prompt": "plain", "completion": "x"},
        {"prompt": "only a prompt"},
        {"messages": [{"role": "assistant", "content": "first"}]},
        {"messages": chat("open", "First", "question")},
        {"broken": 1},
    ]
    path = tmp_path / "a.jsonl"
    result = answer(target, byte_tokenizer, path, rows=rows)
    contexts = [row["messages"][:-1] for row in answers(path).values()]
    expected = [
        chat("one", "First", "two"),
        chat("open", "First", "question"),
        chat("plain"),
        chat("only a prompt"),
    ]
    assert sorted(contexts, key=str) == sorted(expected, key=str)
    (with_tools,) = [row for row in answers(path).values() if "tools" in row]
    assert with_tools["tools"] == [{"name": "f"}]
    assert [row.line for row in result.skipped] == [5, 7]
    with pytest.raises(ValueError, match=r"rows:5: the row has no prompt"):
        answer(target, byte_tokenizer, tmp_path / "b.jsonl", rows=rows, strict=True)


def test_plain_prompts_of_a_base_model(target: Any, byte_tokenizer: Any, tmp_path: Path) -> None:
    byte_tokenizer.chat_template = None
    rows = [{"prompt": "the quick", "completion": " fox"}, {"prompt": "dog", "completion": "x"}]
    path = tmp_path / "a.jsonl"
    answer(target, byte_tokenizer, path, rows=rows)
    found = {row["prompt"]: row["assistant_token_ids"] for row in answers(path).values()}
    for prompt, ids in found.items():
        shown = byte_tokenizer.encode(prompt, add_special_tokens=False)
        with torch.no_grad():
            output = target.generate(torch.tensor([shown]), do_sample=False, max_new_tokens=12)
        assert ids == output[0, len(shown) :].tolist()
    counts = TokenCounts.from_dataset(path, byte_tokenizer, cache_dir=False, progress=False)
    assert counts.total("all") == sum(map(len, found.values()))


def test_a_limit(target: Any, byte_tokenizer: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    assert answer(target, byte_tokenizer, path, limit=2).answered == 2
    assert answer(target, byte_tokenizer, path, limit=2).added == 0
    assert answer(target, byte_tokenizer, path, limit=3).added == 1


def test_a_run_stops_when_its_time_is_over_and_goes_on(
    target: Any, byte_tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.jsonl"
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr(target_answers, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    first = answer(target, byte_tokenizer, path, seconds=15)
    assert (first.stopped, first.added) == (True, 4), "it looked after 10 and after 20 seconds"
    assert lines(path)[-1].get("vtrim_record") is None
    assert len(list(first)) == 4
    second = answer(target, byte_tokenizer, path, seconds=0)
    assert (second.stopped, second.added) == (False, 2), "one batch, after which there is none"
    assert len(list(second)) == 6
    assert lines(path)[-1] == {"vtrim_record": "finished", "answered": 6}
    monkeypatch.undo()
    whole = tmp_path / "b.jsonl"
    assert not answer(target, byte_tokenizer, whole, seconds=1e6).stopped
    assert answers(path) == answers(whole)


def test_prompts_that_do_not_fit_are_skipped(byte_tokenizer: Any, tmp_path: Path) -> None:
    target = make_tiny("llama", max_position_embeddings=40)
    rows = [{"prompt": "x" * 60}, {"prompt": "dog"}]
    result = answer(target, byte_tokenizer, tmp_path / "a.jsonl", rows=rows)
    assert result.answered == 1
    assert "1 to 28" in result.skipped[0].reason


def test_drawing_is_the_same_after_a_kill(
    target: Any, byte_tokenizer: Any, tmp_path: Path
) -> None:
    options = {"do_sample": True, "seed": 7, "generation_kwargs": {"temperature": 1.5}}
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    state = torch.random.get_rng_state()
    answer(target, byte_tokenizer, first, **options)
    assert torch.equal(torch.random.get_rng_state(), state)
    answer(target, byte_tokenizer, second, **options)
    assert answers(first) == answers(second)
    answer(target, byte_tokenizer, tmp_path / "c.jsonl", **{**options, "seed": 8})
    assert answers(tmp_path / "c.jsonl") != answers(first)


def test_the_models_own_settings_stay(target: Any, byte_tokenizer: Any, tmp_path: Path) -> None:
    target.generation_config.temperature = 0.5
    target.generation_config.do_sample = True
    before = target.generation_config.to_dict()
    pad, side = byte_tokenizer.pad_token, byte_tokenizer.padding_side
    answer(target, byte_tokenizer, tmp_path / "a.jsonl")
    assert target.generation_config.to_dict() == before
    assert (byte_tokenizer.pad_token, byte_tokenizer.padding_side) == (pad, side)
    with pytest.raises(ValueError, match="no fields temprature"):
        answer(target, byte_tokenizer, tmp_path / "b.jsonl", generation_kwargs={"temprature": 1.0})


def test_bfloat16(byte_tokenizer: Any, tmp_path: Path) -> None:
    target: Any = make_tiny("llama", eos_token_id=IM_END_ID)
    target.to(torch.bfloat16)
    assert answer(target, byte_tokenizer, tmp_path / "a.jsonl").answered == 6


@pytest.mark.parametrize("options", [{"batch_size": 0}, {"max_new_tokens": 0}])
def test_impossible_settings(
    target: Any, byte_tokenizer: Any, tmp_path: Path, options: dict[str, int]
) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        answer(target, byte_tokenizer, tmp_path / "a.jsonl", **options)
    assert not (tmp_path / "a.jsonl").exists()


def test_the_bundled_answers_are_those_of_smollm2_as_it_is_known_today(
    smollm2_tokenizer: Any, tmp_path: Path
) -> None:
    """[what tells targets apart had changed, and the file was refused as another target's]"""
    bundled = EXAMPLES / "train.smollm2.jsonl"
    path = Path(shutil.copy(bundled, tmp_path))
    target = load_model("smollm2", dtype="bfloat16")
    result = answer(
        target,
        smollm2_tokenizer,
        path,
        rows=EXAMPLES / "train.jsonl",
        max_new_tokens=64,
        limit=575,
    )
    assert (result.answered, result.added, len(result.prompts)) == (575, 0, 575)
    assert path.read_bytes() == bundled.read_bytes()
