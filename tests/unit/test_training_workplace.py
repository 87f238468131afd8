"""Where a training lies: which calls share a folder, one at a time, and what is told of others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from training_samples import settings
from vtrim_hf.run_lock import LOCK_FILE, RunLock
from vtrim_hf.training_facts import TRAINING_JSON, weights_hash
from vtrim_hf.training_report import TrainingReport
from vtrim_hf.training_workplace import (
    at_work,
    deciding_settings,
    defaults_beside,
    digest_of,
    finished_draft,
    finished_report,
    left_by_others,
    remove_workplace,
    tensorboard_folder,
    workplace_of,
)


class Arguments:
    """What `at_work` asks of the settings of one of several processes."""

    def __init__(self, process_index: int = 0) -> None:
        self.process_index = process_index
        self.local: list[bool] = []

    @contextmanager
    def main_process_first(self, *, local: bool, desc: str) -> Iterator[None]:
        self.local.append(local)
        yield


def place(folder: Path, **wishes: Any) -> Path:
    args = settings(folder, **wishes)
    call = {"target": "t", "settings": deciding_settings(args, {})}
    return workplace_of(folder / "draft", call)


def test_a_default_decides_as_if_it_had_been_chosen(tmp_path: Path) -> None:
    digests = set()
    for wishes in ({}, {"heldout": 0.05, "unroll_warmup": 0.6}, {"feature_tokens": 9}):
        chosen = wishes if "feature_tokens" not in wishes else {}
        digests.add(digest_of(deciding_settings(settings(tmp_path, **wishes), chosen)))
    assert len(digests) == 1
    for changed in ({"heldout": 0.1}, {"adam_beta2": 0.9}, {"evaluations": 3}):
        # As of a release with another default.
        digests.add(digest_of(deciding_settings(settings(tmp_path, **changed), {})))
    assert len(digests) == 4


def test_the_defaults_of_a_recipe_are_the_same_everywhere() -> None:
    found = defaults_beside({"learning_rate": 1e-4, "seed": None})
    assert "learning_rate" not in found
    assert found["seed"] == 42
    assert found["per_device_train_batch_size"] == 8
    assert found["num_train_epochs"] == 10
    assert [found[name] for name in ("unroll_steps", "bf16", "world_size")] == [None] * 3


def test_with_more_minutes_a_training_goes_on_where_it_is(tmp_path: Path) -> None:
    assert place(tmp_path, max_minutes=30) == place(tmp_path, max_minutes=60)
    others = [
        place(tmp_path, max_minutes=30),
        place(tmp_path),
        place(tmp_path, max_minutes=30, learning_rate=1e-4),
        # The minutes decide how much is answered, and so what is trained on.
        place(tmp_path, max_minutes=30, regenerate=True),
        place(tmp_path, max_minutes=60, regenerate=True),
    ]
    assert len(set(others)) == len(others)
    assert all(one.parent == tmp_path for one in others)


def test_one_call_at_a_time_works_in_a_workplace(tmp_path: Path) -> None:
    args: Any = Arguments()
    folder = tmp_path / ".draft.0123456789ab.training"
    with at_work(args, folder, resume=True):
        (folder / "checkpoint-1").mkdir()
        with (
            pytest.raises(ValueError, match="or name another --output"),
            at_work(args, folder, resume=False),
        ):
            pass
        remove_workplace(folder)
        assert (folder / "checkpoint-1").is_dir(), "nobody removes what is worked in"
    assert args.local == [False, False], "one process of all, not one a machine"
    assert (folder / "checkpoint-1").is_dir()
    remove_workplace(folder)
    assert not folder.exists()
    remove_workplace(folder)


def test_only_the_main_process_begins_anew(tmp_path: Path) -> None:
    folder, logs = tmp_path / "work", tmp_path / "logs"
    for one in (folder / "checkpoint-1", logs):
        one.mkdir(parents=True)
    (folder / "answers.jsonl").touch()
    other: Any = Arguments(1)
    with at_work(other, folder, resume=False, logs=[logs]):
        assert (folder / "checkpoint-1").is_dir()
        assert not (folder / LOCK_FILE).exists()
    main: Any = Arguments(0)
    with at_work(main, folder, resume=True, logs=[logs]):
        assert (folder / "checkpoint-1").is_dir()
    with at_work(main, folder, resume=False, logs=[logs]):
        assert [path.name for path in folder.iterdir()] == [LOCK_FILE]
        assert not logs.exists()
    assert not folder.exists(), "nothing is left of a call that did nothing"


def test_what_other_trainings_left_is_told_and_stays(tmp_path: Path) -> None:
    ours, theirs = (tmp_path / f".draft.{hash_ * 12}.training" for hash_ in "ab")
    names = (".other.cccccccccccc.training", ".draft.2.cccccccccccc.training", ".draft.training")
    for folder in (ours, theirs, *(tmp_path / name for name in names)):
        folder.mkdir()
        (folder / "weights").write_bytes(b"12345")
    assert left_by_others(tmp_path / "draft", ours) == {theirs: 5}
    assert left_by_others(tmp_path / "nothing", ours) == {}
    with RunLock(theirs):
        assert left_by_others(tmp_path / "draft", ours) == {}, "somebody is at work there"
    assert (theirs / "weights").is_file()


def test_logs_stay_beside_the_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TENSORBOARD_LOGGING_DIR", raising=False)
    assert tensorboard_folder(tmp_path / "draft.1") == tmp_path / "draft.1.tensorboard"
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "own"))
    assert tensorboard_folder(tmp_path / "draft") == tmp_path / "own"


def test_a_damaged_report_is_of_no_finished_training(tmp_path: Path) -> None:
    assert finished_report(tmp_path) is None
    (tmp_path / "training_report.json").write_text('{"schema": 0}')
    assert finished_report(tmp_path) is None


def test_a_draft_that_took_its_place_is_not_the_trained_one(tmp_path: Path) -> None:
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"trained")
    report = TrainingReport(tmp_path / TRAINING_JSON)
    report.data |= {"finished": True, "call": "a"}
    report.save()
    assert finished_draft(tmp_path, "a") is not None, "a report of an earlier release"
    report.data["weights"] = weights_hash(tmp_path)
    report.save()
    found = finished_draft(tmp_path, "a")
    assert found is not None
    assert found["weights"] == report.data["weights"]
    assert finished_draft(tmp_path, "b") is None
    weights.write_bytes(b"another")
    assert finished_draft(tmp_path, "a") is None
    weights.unlink()
    assert finished_draft(tmp_path, "a") is None
