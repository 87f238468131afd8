"""The target's answers to train on: found again, bounded in time, the same after a kill."""

from __future__ import annotations

import copy
import json
import logging
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from tiny_models import make_tiny
from training_samples import settings
from vtrim_hf import target_answers, training_answers
from vtrim_hf.run_lock import RunLock
from vtrim_hf.training_answers import AnsweredData, answers_folder
from vtrim_hf.training_arguments import DraftTrainingArguments
from vtrim_hf.training_facts import TRAINING_JSON
from vtrim_hf.training_report import TrainingReport

PROMPTS = 6


@pytest.fixture(scope="module")
def target() -> Any:
    return make_tiny("llama", eos_token_id=2)


@pytest.fixture
def data(tmp_path: Path) -> str:
    path = tmp_path / "data.jsonl"
    write(path, PROMPTS)
    return str(path)


def write(path: Path, number: int) -> None:
    rows = [{"prompt": f"say {n}", "completion": "this"} for n in range(number)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many prompts each batch had that the target answered."""
    numbers: list[int] = []
    generate = target_answers._generate

    def counted(model: Any, config: Any, batch: list[Any], seed: int) -> Any:
        numbers.append(len(batch))
        return generate(model, config, batch, seed)

    monkeypatch.setattr(target_answers, "_generate", counted)
    return numbers


def answered(target: Any, tokenizer: Any, place: Path, **wishes: Any) -> AnsweredData:
    """Return what lets the target answer for a training in `place`."""
    few = {"regenerate": True, "regenerate_tokens": 3, "regenerate_batch_size": 2}
    cache = str(place.parent / "cache")
    args = settings(place, **{**few, "feature_cache": cache, **wishes})
    report = TrainingReport(place / TRAINING_JSON)
    return AnsweredData(target, "hash", tokenizer, args, {}, None, report)


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()[1:]]


def test_trainings_with_other_settings_find_the_answers(
    target: Any, byte_tokenizer: Any, tmp_path: Path, data: str, asked: list[int]
) -> None:
    first = answered(target, byte_tokenizer, tmp_path / "a", regenerate_limit=4)
    assert len(rows_of(first.rows(data, "train", "answers.jsonl"))) == 4
    assert asked == [2, 2]
    shutil.rmtree(tmp_path / "a")  # as of a training that has succeeded
    write(Path(data), PROMPTS + 1)
    second = answered(target, byte_tokenizer, tmp_path / "b", learning_rate=1e-4, max_steps=9)
    assert len(rows_of(second.rows(data, "train", "answers.jsonl"))) == PROMPTS + 1
    assert asked == [2, 2, 2, 1], "more prompts, and only those that were not answered yet"
    facts = second._report.data["answers"]["train"]
    assert facts == {"answered": PROMPTS + 1, "prompts": PROMPTS + 1, "stopped": False}
    longer = answered(target, byte_tokenizer, tmp_path / "c", regenerate_tokens=4)
    longer.rows(data, "train", "answers.jsonl")
    assert sum(asked) == 2 * (PROMPTS + 1), "longer answers are others"
    assert longer.file(data) != second.file(data)


def test_where_answers_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VTRIM_CACHE", str(tmp_path / "cache"))
    for without in ("auto", None):
        assert answers_folder(without) == tmp_path / "cache" / "answers"
    assert answers_folder(str(tmp_path / "own")) == tmp_path / "own" / "answers"


def test_a_timed_training_is_content_with_what_is_answered(
    target: Any,
    byte_tokenizer: Any,
    tmp_path: Path,
    data: str,
    asked: list[int],
    caplog: pytest.LogCaptureFixture,
) -> None:
    def timed() -> AnsweredData:
        return answered(target, byte_tokenizer, tmp_path / "timed", max_minutes=1e-9)

    with caplog.at_level(logging.WARNING):
        place = timed().rows(data, "train", "answers.jsonl")
    assert f"2 of {PROMPTS} prompts are answered" in caplog.text
    assert "--limit" in caplog.text
    before = place.read_bytes()
    assert len(rows_of(place)) == 2
    # Another training answers more of them meanwhile.
    answered(target, byte_tokenizer, tmp_path / "other").rows(data, "train", "answers.jsonl")
    assert sum(asked) == PROMPTS
    again = timed()
    assert again.rows(data, "train", "answers.jsonl").read_bytes() == before
    assert sum(asked) == PROMPTS
    assert again._report.data["answers"]["train"]["stopped"]
    write(Path(data), 3)
    assert len(rows_of(timed().rows(data, "train", "answers.jsonl"))) == 3, "of other data"


def test_what_answering_took_before_a_kill_is_spent(
    target: Any,
    byte_tokenizer: Any,
    tmp_path: Path,
    data: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = tmp_path / "out"
    report, left = place / TRAINING_JSON, tmp_path / "left.json"

    def spent() -> float:
        return float(TrainingReport.load(report).data["seconds"]["answers"])

    def killed(*_: Any, **__: Any) -> None:
        deadline = time.monotonic() + 120
        while not spent():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        shutil.copy(report, left)  # what is on the disk when nothing can be done any more
        raise KeyboardInterrupt

    def new() -> AnsweredData:
        made = answered(target, byte_tokenizer, place, max_minutes=10)
        made.count_interrupted(data)
        return made

    with monkeypatch.context() as patch:
        patch.setattr(training_answers, "_SAVED_EVERY", 0.01)
        patch.setattr(training_answers, "answer_with_target", killed)
        with pytest.raises(KeyboardInterrupt):
            new().rows(data, "train", "answers.jsonl")
    shutil.copy(left, report)
    known = json.loads(left.read_text())
    known["seconds"]["answers"] = 200.0
    report.write_text(json.dumps(known))
    asked_for: list[float] = []
    answer = target_answers.answer_with_target

    def noted(*arguments: Any, **wishes: Any) -> Any:
        asked_for.append(wishes["seconds"])
        return answer(*arguments, **wishes)

    monkeypatch.setattr(training_answers, "answer_with_target", noted)
    again = new()
    assert again._report.data["seconds"]["answers"] == 200.0
    again.rows(data, "evaluation", "eval_answers.jsonl")
    assert asked_for == [0.0], "of five minutes one is for what chooses the best checkpoint"
    again.rows(data, "train", "answers.jsonl")
    assert asked_for[1] == pytest.approx(100.0, abs=60)
    # Other data is another training.
    report.write_text(json.dumps(known))
    write(Path(data), 3)
    assert new()._report.data["seconds"]["answers"] == 0.0


def test_a_second_run_on_the_same_data_is_refused(
    target: Any, byte_tokenizer: Any, tmp_path: Path, data: str
) -> None:
    """[it answered all of them again, for itself alone]"""
    ours = answered(target, byte_tokenizer, tmp_path / "out")
    with (
        RunLock(ours.file(data).parent),
        pytest.raises(ValueError, match=r"another run .* or name another --feature-cache"),
    ):
        ours.rows(data, "train", "answers.jsonl")
    assert not (tmp_path / "out").exists()
    assert len(rows_of(ours.rows(data, "train", "answers.jsonl"))) == PROMPTS


def test_trainings_on_other_data_at_once_keep_their_answers(
    target: Any, byte_tokenizer: Any, tmp_path: Path, data: str, asked: list[int]
) -> None:
    """[those of the second lay in its own folder, and went with it]"""
    other = tmp_path / "other.jsonl"
    write(other, PROMPTS)
    first = answered(target, byte_tokenizer, tmp_path / "a")
    with RunLock(first.file(data).parent):
        second = answered(target, byte_tokenizer, tmp_path / "b")
        assert len(rows_of(second.rows(str(other), "train", "answers.jsonl"))) == PROMPTS
    assert [path.name for path in (tmp_path / "b").glob("*.jsonl")] == ["answers.jsonl"]
    shutil.rmtree(tmp_path / "b")  # as of a training that has succeeded
    asked.clear()
    again = answered(target, byte_tokenizer, tmp_path / "c", learning_rate=1e-4)
    assert len(rows_of(again.rows(str(other), "train", "answers.jsonl"))) == PROMPTS
    assert not asked
    assert again.file(str(other)).is_file()
    assert not again.file(data).is_file()


def test_a_kill_while_answering_loses_no_whole_batch(
    target: Any,
    byte_tokenizer: Any,
    tmp_path: Path,
    data: str,
    asked: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generate = target_answers._generate

    def dies(*arguments: Any) -> Any:
        if len(asked) == 2:
            raise KeyboardInterrupt
        return generate(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(target_answers, "_generate", dies)
        with pytest.raises(KeyboardInterrupt):
            answered(target, byte_tokenizer, tmp_path / "a").rows(data, "train", "answers.jsonl")
    shutil.rmtree(tmp_path / "a")
    place = answered(target, byte_tokenizer, tmp_path / "b").rows(data, "train", "answers.jsonl")
    assert len(rows_of(place)) == PROMPTS
    assert asked == [2, 2, 2]


def test_answers_outlive_another_release_of_transformers(
    target: Any, byte_tokenizer: Any, tmp_path: Path, data: str
) -> None:
    """[the generation config says which one has written it]"""
    before = answered(target, byte_tokenizer, tmp_path / "out").file(data)
    upgraded = copy.deepcopy(target)
    upgraded.generation_config.transformers_version = "99.0.0"
    assert answered(upgraded, byte_tokenizer, tmp_path / "out").file(data) == before
    upgraded.generation_config.repetition_penalty = 1.5
    assert answered(upgraded, byte_tokenizer, tmp_path / "out").file(data) != before


def test_what_tells_data_apart_is_its_place(
    target: Any,
    byte_tokenizer: Any,
    tmp_path: Path,
    data: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def file(source: object) -> Path:
        return answered(target, byte_tokenizer, tmp_path / "out").file(source)

    known = file(data)
    monkeypatch.chdir(tmp_path)
    assert file("data.jsonl") == file(Path(data)) == known
    (tmp_path / "sql").mkdir()
    shutil.copy(data, tmp_path / "sql")
    assert file("sql/data.jsonl") != known
    assert file([{"prompt": "a"}]) == file([{"prompt": "b"}]) != known


def test_further_processes_read_what_the_main_one_wrote(
    target: Any,
    byte_tokenizer: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [{"prompt": "say it", "completion": "this"}]  # nothing tells what is in a list
    main = answered(target, byte_tokenizer, tmp_path / "out")
    place = main.rows(rows, "train", "answers.jsonl")
    monkeypatch.setattr(training_answers, "answer_with_target", None)
    monkeypatch.setattr(DraftTrainingArguments, "local_process_index", 1)
    other = answered(target, byte_tokenizer, tmp_path / "out")
    assert other.rows(rows, "train", "answers.jsonl") == place
