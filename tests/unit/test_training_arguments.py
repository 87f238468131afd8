from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from training_samples import settings
from vtrim_hf.training_arguments import DraftTrainingArguments, bfloat16_pays
from vtrim_hf.training_checkpoints import checkpoints, last_whole_checkpoint
from vtrim_hf.training_pace import NoTimeLeftError, Pace
from vtrim_hf.training_progress import by_position
from vtrim_hf.training_report import TrainingReport


def test_defaults_are_those_of_a_draft(tmp_path: Path) -> None:
    args = DraftTrainingArguments(str(tmp_path))
    on_gpu = torch.cuda.is_available()
    assert args.unroll_steps == (7 if on_gpu else 4)
    assert args.acceptance_steps == args.unroll_steps
    assert args.bf16 == bfloat16_pays(on_gpu)
    assert (args.adam_beta1, args.adam_beta2) == (0.9, 0.95)
    assert (args.learning_rate, args.max_grad_norm, args.warmup_steps) == (1e-3, 0.5, 0.03)
    assert args.per_device_train_batch_size == 8
    assert args.report_to == []
    assert args.metric_for_best_model == "acceptance_length"
    assert args.greater_is_better
    assert args.load_best_model_at_end
    recorded = json.loads(json.dumps(args.recorded()))
    assert recorded["lr_scheduler_type"] == "cosine"
    assert recorded["unroll_steps"] == args.unroll_steps
    assert recorded["unroll_warmup"] == args.unroll_warmup == 0.6


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ({"unroll_steps": 0}, "unroll_steps must be at least 1, got 0"),
        ({"acceptance_steps": 0}, "acceptance_steps must be at least 1"),
        ({"max_length": 2}, "max_length must be at least 3"),
        ({"step_decay": 0.0}, r"step_decay must lie in \(0, 1\]"),
        ({"step_decay": 1.5}, "step_decay"),
        ({"unroll_warmup": 1.5}, r"unroll_warmup must lie in \[0, 1\], got 1.5"),
        ({"unroll_warmup": float("nan")}, "unroll_warmup must lie in"),
        ({"heldout": 0.0}, "heldout must lie in"),
        ({"learning_rate": -1.0}, "learning_rate must be more than 0, got -1.0"),
        ({"learning_rate": float("nan")}, "learning_rate must be more than 0"),
        ({"max_minutes": 0.0}, "max_minutes must be more than 0"),
        ({"feature_dtype": "float16"}, "feature_dtype must be one of bfloat16, float32"),
        ({"fp16": True}, "bfloat16 or float32"),
        ({"dataloader_num_workers": 2}, "dataloader_num_workers=0"),
        ({"regenerate_limit": 0}, "regenerate_limit must be at least 1"),
        ({"gradient_checkpointing": True}, "nothing to checkpoint between layers"),
    ],
)
def test_mistakes_are_named(wish: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=words):
        DraftTrainingArguments(str(tmp_path), **wish)


def test_tensorboard_is_asked_for_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vtrim_hf.training_arguments.find_spec", lambda name: None)
    with pytest.raises(ImportError, match="pip install tensorboard"):
        settings(tmp_path, report_to="tensorboard")
    monkeypatch.setattr("vtrim_hf.training_arguments.find_spec", lambda name: name)
    assert settings(tmp_path, report_to="tensorboard").report_to == ["tensorboard"]


@pytest.mark.parametrize(("steps", "half"), [(1, 1), (4, 2), (7, 4)])
def test_fewer_tokens_in_a_row_are_drafted_at_first(steps: int, half: int, tmp_path: Path) -> None:
    args = settings(tmp_path, max_steps=10, unroll_steps=steps, unroll_warmup=0.6)
    pace = Pace(args, TrainingReport(None))
    found = [
        pace.unroll_steps(SimpleNamespace(global_step=step, max_steps=10)) for step in range(10)
    ]
    assert found == [half] * 6 + [steps] * 4


def test_in_a_timed_training_the_time_says_when_all_tokens_are_drafted(tmp_path: Path) -> None:
    args = settings(tmp_path, max_minutes=1, max_steps=-1, unroll_steps=4, unroll_warmup=0.5)
    report = TrainingReport(None)
    pace, state = Pace(args, report), SimpleNamespace(global_step=999_999, max_steps=1_000_000)
    report.data["seconds"]["training"] = 29.0
    assert pace.unroll_steps(state) == 2
    report.data["seconds"]["training"] = 31.0
    assert pace.unroll_steps(state) == 4


def test_a_timed_training_knows_only_schedules_of_time(tmp_path: Path) -> None:
    args = settings(tmp_path, max_minutes=1, lr_scheduler_type="polynomial")
    with pytest.raises(ValueError, match="one of the schedules cosine, linear"):
        Pace(args, TrainingReport(None))


@pytest.mark.parametrize("shape", ["cosine", "linear", "constant", "constant_with_warmup"])
def test_the_learning_rate_follows_the_time(shape: str, tmp_path: Path) -> None:
    args = settings(tmp_path, max_minutes=1, lr_scheduler_type=shape, max_steps=-1)
    report = TrainingReport(None)
    report.data["seconds"].update(features=10.0, answers=10.0)
    pace = Pace(args, report)
    factors = []
    for seconds in (0, 0.6, 20, 39.9, 50):
        report.data["seconds"]["training"] = float(seconds)
        factors.append(pace.factor(0 if seconds == 0 else 1))
    start, rising, middle, end, after = factors
    if shape == "constant":
        assert factors == [1.0] * 5
        return
    assert start == pytest.approx(0.01, rel=0.02)
    assert rising == pytest.approx(0.5, rel=0.03)
    assert middle == (1.0 if shape.startswith("constant") else pytest.approx(0.5))
    assert end == after == (1.0 if shape.startswith("constant") else pytest.approx(0.02))


def test_a_timed_training_is_evaluated_now_and_then_and_ends(tmp_path: Path) -> None:
    args = settings(tmp_path, max_minutes=1, evaluations=4, eval_strategy="steps")
    report = TrainingReport(None)
    pace = Pace(args, report)
    asked = []
    for seconds in (5, 14, 16, 20, 44, 46, 61):
        report.data["seconds"]["training"] = float(seconds)
        control = SimpleNamespace(
            should_evaluate=False, should_save=False, should_training_stop=False, should_log=False
        )
        pace.follow(SimpleNamespace(global_step=seconds, max_steps=1000), control)
        asked.append((control.should_evaluate, control.should_training_stop))
    assert asked == [
        (False, False),
        (False, False),
        (True, False),
        (False, False),
        (True, False),
        (True, False),
        (True, True),
    ]


def test_a_report_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    report = TrainingReport(tmp_path / "deep" / "report.json")
    state = SimpleNamespace(global_step=3, epoch=0.5)
    report.data["seconds"]["features"] = 4.0
    report.add("curve", state, {"loss": 2.0, "acceptance_1": 0.5, "acceptance_length": 1.5})
    kept = json.loads(json.dumps(report.state()))
    state.global_step = 6
    report.add("curve", state, {"loss": float("nan"), "acceptance_length": 1.0})
    report.add("evaluations", state, {"acceptance_length": 1.25, "acceptance_1": 0.25})
    report.save()
    found = TrainingReport.load(tmp_path / "deep" / "report.json").data
    assert [point["loss"] for point in found["curve"]] == [2.0, None]
    assert found["curve"][0]["acceptance"] == [0.5]
    assert found["best"] == {"step": 6, "acceptance_length": 1.25}
    again = TrainingReport(tmp_path / "deep" / "report.json")
    again.count_interrupted()
    assert again.data["seconds"]["features"] == 4.0
    again.data["seconds"]["features"] = 1.0
    again.go_on(kept)
    assert again.data["seconds"]["features"] == 4.0
    assert [point["step"] for point in again.data["curve"]] == [3]
    assert again.data["best"] is None
    (tmp_path / "other.json").write_text('{"schema": 99}')
    with pytest.raises(ValueError, match="no training report of schema 1, got 99"):
        TrainingReport.load(tmp_path / "other.json")


def test_only_whole_checkpoints_are_gone_on_from(tmp_path: Path) -> None:
    for step, files in {
        2: {"draft_training.json": "{}", "trainer_state.json": "{}"},
        10: {"draft_training.json": "{}", "trainer_state.json": "{"},
        20: {"trainer_state.json": "{}"},
    }.items():
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        for name, text in files.items():
            (folder / name).write_text(text)
    (tmp_path / "checkpoint-old").mkdir()
    assert [path.name for path in checkpoints(tmp_path)] == [
        "checkpoint-2",
        "checkpoint-10",
        "checkpoint-20",
    ]
    found = last_whole_checkpoint(tmp_path)
    assert found is not None
    assert found.name == "checkpoint-2"
    assert not (tmp_path / "checkpoint-20").exists()
    assert last_whole_checkpoint(tmp_path / "none") is None


def test_acceptance_is_shown_by_position() -> None:
    logs = {f"acceptance_{n}": n / 20 for n in (2, 10, 1)} | {"acceptance_length": 2.0}
    assert by_position(logs) == "0.05 0.10 0.50"


def test_a_training_whose_time_went_into_features_says_how_much(tmp_path: Path) -> None:
    report = TrainingReport(None)
    report.data["seconds"]["features"] = 90.0
    with pytest.raises(NoTimeLeftError, match=r"1\.5 of 1\.0 minutes .* allow more time") as found:
        Pace(settings(tmp_path, max_minutes=1), report).begin()
    Pace(settings(tmp_path, max_minutes=1 + found.value.spent), report).begin()
