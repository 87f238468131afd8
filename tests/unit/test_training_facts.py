"""What a published draft tells of its training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from published_facts import Pair, make_pair, make_training
from vtrim_hf.coverage_metadata import make_metadata
from vtrim_hf.plain_facts import plain
from vtrim_hf.training_facts import (
    TRAINING_JSON,
    training_beside,
    training_facts,
    weights_hash,
)
from vtrim_hf.training_report import TrainingReport


@pytest.fixture(scope="module")
def pair() -> Pair:
    return make_pair()


def facts_of(pair: Pair, report: Any) -> dict[str, Any]:
    found: dict[str, Any] = plain(training_facts(report, pair.draft.vocabulary.fingerprint))
    return found


def test_figures_are_those_of_the_checkpoint_that_was_kept(pair: Pair) -> None:
    found = facts_of(pair, make_training(pair.draft))
    assert found["best_step"] == 50
    assert found["acceptance_length"] == 2.5
    assert found["acceptance"] == [0.7, pytest.approx(0.55)]
    assert (found["masked_share"], found["heldout_masked_share"]) == (0.01, 0.03)
    assert (found["steps"], found["epochs"], found["tokens"]) == (60, 6.0, 60_000)
    assert found["minutes"] == 6.5
    assert found["minutes_by_part"] == {"features": 1.0, "training": 5.0, "evaluation": 0.5}
    assert found["data"]["heldout"]["conversations"] == 60
    assert found["settings"]["learning_rate"] == 1e-3
    assert "max_minutes" not in found["settings"]
    assert found["datasets"] == ["me/chats"], "of the names only Hub ids"
    assert found["fingerprints"] == {"target": "b" * 64, "layers": "1,2,3"}
    assert [point["step"] for point in found["curve"]] == [10, 20, 30, 40, 50, 60]
    assert found["curve"][0] == {
        "step": 10,
        "tokens": 10_000,
        "minutes": 1.0,
        "acceptance_length": 2.05,
    }


@pytest.mark.parametrize(
    ("start", "told"),
    [
        ({"id": "me/first", "hash": "c" * 40}, {"id": "me/first", "hash": "c" * 40}),
        ({"name": "my secret draft", "hash": "a" * 64}, {"hash": "a" * 64}),
    ],
)
def test_what_was_trained_on_is_told_without_a_folder_s_name(
    pair: Pair, start: dict[str, str], told: dict[str, str]
) -> None:
    held = make_training(pair.draft)
    assert "start" not in facts_of(pair, held), "it began with a new draft"
    made = make_metadata(pair.draft, training={**held, "start": start})
    assert made["training"]["start"] == told


def test_of_many_evaluations_some_are_told(pair: Pair) -> None:
    found = facts_of(pair, make_training(pair.draft, evaluations=500))["curve"]
    assert 40 <= len(found) <= 42
    assert {10, 4990, 5000} <= {point["step"] for point in found}


def test_a_report_is_taken_in_every_form(pair: Pair, tmp_path: Path) -> None:
    held = make_training(pair.draft)
    report = TrainingReport(tmp_path / TRAINING_JSON)
    report.data = held
    report.save()
    expected = facts_of(pair, held)
    for form in (report, tmp_path, tmp_path / TRAINING_JSON, str(tmp_path)):
        assert facts_of(pair, form) == expected


def test_a_training_that_was_just_begun(pair: Pair) -> None:
    report = TrainingReport(None)
    report.data["fingerprints"] = {"vocabulary": pair.draft.vocabulary.fingerprint}
    assert facts_of(pair, report) == {
        "finished": False,
        "tokens": 0,
        "settings": {},
        "data": {},
    }


def test_a_loss_of_no_number_is_left_out(pair: Pair) -> None:
    held = make_training(pair.draft)
    held["evaluations"][2]["acceptance_length"] = float("nan")
    assert [point["step"] for point in facts_of(pair, held)["curve"]] == [10, 20, 40, 50, 60]


@pytest.mark.parametrize("text", ["{", "[1]", '{"schema": 9}', "\xff", "[" * 100_000])
def test_what_is_no_report_is_refused(pair: Pair, text: str, tmp_path: Path) -> None:
    (tmp_path / TRAINING_JSON).write_text(text)
    with pytest.raises(ValueError, match=r"is no JSON|must have schema 1, got"):
        facts_of(pair, tmp_path)


def test_other_things_are_no_report(pair: Pair, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must have schema 1, got 'list'"):
        facts_of(pair, [1])
    with pytest.raises(FileNotFoundError, match=r"training_report\.json is missing"):
        facts_of(pair, tmp_path)


def test_a_report_of_another_draft_is_refused_and_beside_one_left_out(
    pair: Pair, tmp_path: Path
) -> None:
    """`retrim` gives a trained draft another vocabulary."""
    held = make_training(pair.draft)
    own = pair.draft.vocabulary.fingerprint
    assert training_beside(None, own) is None
    assert training_beside(tmp_path, own) is None
    (tmp_path / TRAINING_JSON).write_text(json.dumps(held))
    assert training_beside(tmp_path, own) == held
    assert training_beside(tmp_path, "e" * 64) is None
    with pytest.raises(ValueError, match="of the training that made this draft"):
        training_facts(held, "e" * 64)


def test_a_report_that_names_other_weights_is_of_another_draft(pair: Pair, tmp_path: Path) -> None:
    """Two drafts of one vocabulary, the second saved over the first."""
    own = pair.draft.vocabulary.fingerprint
    pair.draft.save_pretrained(tmp_path)
    held = {**make_training(pair.draft), "weights": weights_hash(tmp_path)}
    (tmp_path / TRAINING_JSON).write_text(json.dumps(held))
    assert training_beside(tmp_path, own) == held
    make_pair(seed=1).draft.save_pretrained(tmp_path)
    assert training_beside(tmp_path, own) is None
    held.pop("weights")  # of an earlier release
    (tmp_path / TRAINING_JSON).write_text(json.dumps(held))
    assert training_beside(tmp_path, own) == held
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"model\.safetensors is missing"):
        weights_hash(tmp_path)
