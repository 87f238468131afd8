from __future__ import annotations

import inspect
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from training_samples import settings
from vtrim_hf.training_arguments import DraftTrainingArguments, bfloat16_pays
from vtrim_hf.training_checkpoints import (
    checkpoints,
    continued,
    last_whole_checkpoint,
    step_of,
    write_state,
)
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
    assert recorded["optim"] == "adamw_torch_fused"
    assert (recorded["heldout"], recorded["regenerate"]) == (0.05, False)
    assert (recorded["world_size"], recorded["data_seed"]) == (1, None)
    assert args.ddp_timeout_delta.days == 1, "others wait while the main process reads the target"


@pytest.mark.parametrize("fast", [False, True])
def test_bfloat16_pays_on_gpus_that_do_more_than_emulate_it(
    fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[a T4 or V100 got it, and was slower]"""

    def is_bf16_supported(including_emulation: bool = True) -> bool:
        return including_emulation or fast

    monkeypatch.setattr("torch.cuda.is_bf16_supported", is_bf16_supported)
    assert bfloat16_pays(on_gpu=True) is fast


def test_the_oldest_torch_knows_what_emulation_is() -> None:
    assert "including_emulation" in inspect.signature(torch.cuda.is_bf16_supported).parameters


@pytest.mark.parametrize(
    ("wish", "epochs"),
    [
        ({}, 10),
        ({"num_train_epochs": 3.0}, 3),
        ({"max_minutes": 5}, 10_000),
        ({"max_minutes": 5, "num_train_epochs": None}, 10_000),
        ({"max_minutes": 5, "num_train_epochs": 10.0}, 10),  # the default, but asked for
        ({"max_minutes": 5, "num_train_epochs": 3}, 3),
    ],
)
def test_epochs_that_are_asked_for_stay_beside_a_time(
    wish: dict[str, Any], epochs: float, tmp_path: Path
) -> None:
    assert DraftTrainingArguments(str(tmp_path), **wish).num_train_epochs == epochs


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


def test_what_is_finished_names_the_weights_that_were_taken(tmp_path: Path) -> None:
    report = TrainingReport(tmp_path / "report.json")
    for step, length in ((0, 2.0), (4, 3.0), (8, 2.5)):
        state = SimpleNamespace(global_step=step, epoch=step / 8)
        report.add("evaluations", state, {"acceptance_length": length})
    assert report.data["best"] == {"step": 4, "acceptance_length": 3.0}, "so far"
    for taken, best in ((0, {"step": 0, "acceptance_length": 2.0}), (7, None)):
        report.finish(taken)
        assert TrainingReport.load(tmp_path / "report.json").data["best"] == best


def test_a_report_of_an_earlier_training_stays_until_another_begins(tmp_path: Path) -> None:
    first = TrainingReport(tmp_path / "report.json")
    first.hold_back()
    first.save()
    assert first.path is not None
    assert first.path.is_file(), "there was none"
    first.finish(1)
    second = TrainingReport(tmp_path / "report.json")
    second.hold_back()
    second.save()
    assert TrainingReport.load(tmp_path / "report.json").data["finished"]
    second.begin()
    second.save()
    assert not TrainingReport.load(tmp_path / "report.json").data["finished"]


def test_reports_of_before_are_read(tmp_path: Path) -> None:
    """Of a release that knew no machine and no longest evaluation; its checkpoints, too."""
    report = TrainingReport(tmp_path / "report.json")
    state = report.state()
    del state["longest_evaluation"]
    for name in ("machine", "longest_evaluation"):
        del report.data[name]
    report.data["seconds"]["training"] = 7.0
    report.save()
    old = TrainingReport.load(tmp_path / "report.json")
    assert old.data["machine"] == {}
    assert old.data["seconds"]["training"] == 7.0
    old.go_on(state)
    assert old.data["longest_evaluation"] == 0.0


@pytest.mark.parametrize(
    ("name", "before", "now"), [("world_size", 2, 1), ("data_seed", 3, 4), ("heldout", 0.1, 0.2)]
)
def test_what_a_training_goes_on_with_differently_is_told(
    name: str, before: Any, now: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    report = TrainingReport(None)
    report.data["fingerprints"] = {"target": "a"}
    report.data["settings"] = {**settings(tmp_path).recorded(), name: before}
    report.data["tokens_seen"] = 7
    sums = torch.tensor([[3.0, 2.0, 1.0, 0.1], [2.0, 1.0, 0.0, 1e-9]])
    write_state(tmp_path, report, sums)
    again = TrainingReport(None)
    again.data["fingerprints"] = {"target": "a"}
    again.data["settings"] = {**report.data["settings"], name: now}
    assert continued(tmp_path, again).equal(sums), "to the last bit"
    assert again.data["tokens_seen"] == 7
    assert f"other settings: {name} {before} -> {now}" in caplog.text
    caplog.clear()
    state = json.loads((tmp_path / "draft_training.json").read_text())
    del state["sums"]  # as an earlier release wrote it
    (tmp_path / "draft_training.json").write_text(json.dumps(state))
    assert not continued(tmp_path, report).numel()
    assert not caplog.text


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
    assert step_of(found) == 2
    assert not (tmp_path / "checkpoint-20").exists()
    assert last_whole_checkpoint(tmp_path / "none") is None
