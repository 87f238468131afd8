"""`train_draft`: a finished training is not trained again, and one goes on from another draft."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import HfApi

from hub_client import point_client_at
from published_facts import make_report, make_training
from tiny_models import make_byte_tokenizer, make_tiny
from vtrim_hf import DraftVocabulary, TrimmedDraftForCausalLM
from vtrim_hf.coverage_metadata import make_metadata
from vtrim_hf.hub import publish
from vtrim_hf.local_hub import LocalHub
from vtrim_hf.named_models import NamedModel
from vtrim_hf.training import DraftTrainer
from vtrim_hf.training_step import TrainedDraft, train_draft

pytestmark = pytest.mark.newest  # on the oldest releases test_cli_training.py trains

FAST = {
    "bf16": False,
    "per_device_train_batch_size": 4,
    "unroll_steps": 2,
    "max_steps": 3,
    "feature_cache": "auto",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny target, its vocabulary and chat data."""
    folder = tmp_path_factory.mktemp("step")
    tokenizer = make_byte_tokenizer()
    make_tiny("llama", num_hidden_layers=4, eos_token_id=2).save_pretrained(folder / "target")
    tokenizer.save_pretrained(folder / "target")
    DraftVocabulary.from_ids(range(290), vocab_size=300, tokenizer=tokenizer).save(folder / "kept")
    rows = [{"prompt": f"say {n}", "completion": f"number {n} it is"} for n in range(24)]
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def trained(place: Path, output: Path, wishes: dict[str, Any], **options: Any) -> TrainedDraft:
    if "start" not in options:
        options["vocabulary"] = place / "kept"
    return train_draft(
        NamedModel(str(place / "target")),
        str(place / "data.jsonl"),
        output,
        settings={**FAST, **wishes},
        progress=False,
        **{"calibration_prompts": 0, **options},
    )


def test_a_finished_timed_training_takes_no_further_step(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    step = DraftTrainer.training_step

    def counted(self: DraftTrainer, *arguments: Any, **options: Any) -> Any:
        steps.append(self.state.global_step)
        return step(self, *arguments, **options)

    monkeypatch.setattr(DraftTrainer, "training_step", counted)
    timed = {"max_minutes": 1000, "evaluations": 2}
    first = trained(place, tmp_path / "draft", timed)
    weights = copy.deepcopy(first.draft.state_dict())
    assert len(steps) == 3
    resumed: list[int] = []
    again = trained(
        place,
        tmp_path / "draft",
        timed,
        draft_length=2,
        calibration_prompts=2,
        on_resumed=resumed.append,
    )
    assert again.report["calibration"]["prompts"] == 2
    assert again.workplace == first.workplace
    assert resumed == [3]
    assert len(steps) == 3
    assert again.draft.generation_config.num_assistant_tokens == 2
    for name, weight in again.draft.state_dict().items():
        assert torch.equal(weight, weights[name]), name
    for part in ("curve", "best", "evaluations", "tokens_seen", "fingerprints"):
        assert again.report[part] == first.report[part]
    assert again.report["call"] != first.report["call"]
    # With more minutes it is not finished, and goes on where it was.
    trained(place, tmp_path / "draft", {**timed, "max_minutes": 2000})
    assert steps == [0, 1, 2, 3]


def measured_draft(place: Path) -> Any:
    """Return an untrained draft that says it was trained, measured and calibrated."""
    target = NamedModel(str(place / "target")).model("float32")
    draft: Any = TrimmedDraftForCausalLM.for_target(target, DraftVocabulary.load(place / "kept"))
    draft.generation_config.assistant_confidence_calibration = [2.0, 1.0]
    draft.coverage_metadata = make_metadata(
        draft, report=make_report(290), training=make_training(draft), datasets=["me/first"]
    )
    assert {"decoding", "training"} <= set(draft.coverage_metadata)
    return draft


def check_that_it_knows_nothing_of_its_forerunner(draft: Any) -> None:
    facts = draft.coverage_metadata
    assert not {"decoding", "training"} & set(facts)
    assert facts["datasets"] == ["me/first", "me/second"]
    assert facts["draft"]["k"] == 290
    assert facts["draft"]["dtype"] == "bfloat16"
    assert getattr(draft.generation_config, "assistant_confidence_calibration", None) is None


def test_what_was_measured_of_the_first_draft_is_not_the_second_one_s(
    place: Path, tmp_path: Path
) -> None:
    draft = measured_draft(place)
    draft.save_pretrained(tmp_path / "first")
    start = NamedModel(str(tmp_path / "first"))
    found = trained(place, tmp_path / "second", {}, start=start, datasets=["me/second"])
    check_that_it_knows_nothing_of_its_forerunner(found.draft)
    found.draft.save_pretrained(tmp_path / "second")
    saved = TrimmedDraftForCausalLM.from_pretrained(tmp_path / "second")
    check_that_it_knows_nothing_of_its_forerunner(saved)
    calibrated = trained(place, tmp_path / "third", {}, start=start, calibration_prompts=4)
    known = calibrated.report["calibration"]
    settings = calibrated.draft.generation_config
    assert settings.assistant_confidence_calibration == [known["slope"], known["offset"]]


@pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")
def test_nor_is_that_of_a_published_draft(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LocalHub(tmp_path / "hub") as hub:
        point_client_at(monkeypatch, hub, tmp_path / "cache")
        HfApi().create_repo("user/first")
        publish(
            measured_draft(place),
            "user/first",
            tokenizer=make_byte_tokenizer(),
            license="mit",
            target_id="user/target",
            progress=False,
            exist_ok=True,
        )
        start = NamedModel("user/first")
        assert "decoding" in start.model().coverage_metadata
        start.release()
        found = trained(place, tmp_path / "second", {}, start=start, datasets=["me/second"])
        check_that_it_knows_nothing_of_its_forerunner(found.draft)
        assert found.draft.coverage_metadata["target"]["id"] == "user/target"
