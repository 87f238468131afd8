"""`train_draft`: a finished training is not trained again, and one goes on from another draft."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import HfApi

from hub_client import point_client_at
from published_facts import make_report, make_training
from tiny_models import make_byte_tokenizer, make_tiny
from vtrim_hf import (
    DecodingModel,
    DraftVocabulary,
    LatencyModel,
    TokenCounts,
    TrimmedDraftForCausalLM,
    search_vocabulary,
)
from vtrim_hf.coverage_metadata import make_metadata
from vtrim_hf.hub import publish
from vtrim_hf.local_hub import LocalHub
from vtrim_hf.named_models import NamedModel
from vtrim_hf.training import DraftTrainer
from vtrim_hf.training_step import TrainedDraft, train_draft
from vtrim_hf.vocabulary import tokenizer_fingerprint

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
        options.setdefault("vocabulary", place / "kept")
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


def test_a_finished_training_that_kept_its_last_weights_keeps_them(
    place: Path, tmp_path: Path
) -> None:
    """[a second call took those of the best evaluation]"""
    wishes: dict[str, Any] = {
        "load_best_model_at_end": False,
        **{"eval_steps": 1, "save_steps": 1, "save_total_limit": 3, "learning_rate": 0.01},
    }
    first = trained(place, tmp_path / "draft", wishes)
    weights = copy.deepcopy(first.draft.state_dict())
    place_of_state = first.workplace / "checkpoint-3" / "trainer_state.json"
    state = json.loads(place_of_state.read_text())
    state["best_model_checkpoint"] = str(first.workplace / "checkpoint-1")
    place_of_state.write_text(json.dumps(state))
    again = trained(place, tmp_path / "draft", wishes, draft_length=2)
    assert again.workplace == first.workplace
    assert again.report["best"]["step"] == 3
    for name, weight in again.draft.state_dict().items():
        assert torch.equal(weight, weights[name]), name


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as a search for throughput leaves it, which chose to draft 9 tokens a round."""
    folder = tmp_path_factory.mktemp("search")
    counts = TokenCounts.from_counts(
        np.r_[np.full(280, 5), np.zeros(20, dtype=np.int64)],
        tokenizer_hash=tokenizer_fingerprint(make_byte_tokenizer()),
    )
    result = search_vocabulary(
        counts,
        LatencyModel(300, "measured", "s", {"body": 1e-9}, (0, 300), (0.0, 0.0)),
        objective="throughput",
        decoding=DecodingModel([1.0], {1: 1.0}, max_draft_length=9),
        progress=False,
    )
    assert result.draft_length == 9
    result.save(folder / "search.json")
    result.vocabulary.save(folder)
    return folder


def test_a_draft_gets_the_length_that_its_search_chose(
    place: Path, searched: Path, tmp_path: Path
) -> None:
    output, wishes = tmp_path / "draft", {"max_steps": 1}
    chosen = trained(place, output, wishes, vocabulary=searched)
    assert chosen.draft.generation_config.num_assistant_tokens == 9
    assert chosen.draft.coverage_metadata["search"]["objective"] == "throughput"
    given = trained(place, output, wishes, vocabulary=searched, draft_length=3)
    assert given.draft.generation_config.num_assistant_tokens == 3
    assert given.workplace == chosen.workplace, "it comes after the training"
    assert given.report["call"] != chosen.report["call"]


def test_a_search_of_another_vocabulary_is_refused_before_the_training(
    place: Path, searched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vtrim_hf.named_models.load_model", None)
    for folder, name in ((place / "kept", "*"), (searched, "search.json")):
        for file in folder.glob(name):
            shutil.copy(file, tmp_path)
    with pytest.raises(ValueError, match=r"search\.json is of the vocabulary .* search again"):
        trained(place, tmp_path / "draft", {}, vocabulary=tmp_path)


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
    # It is said what both were trained on from, and it was the same, before the first training.
    known = {"name": "first", "hash": start.identity.removeprefix("folder:")}
    assert found.report["start"] == calibrated.report["start"] == known
    firsts = [one.report["evaluations"][0] for one in (found, calibrated)]
    assert [point["step"] for point in firsts] == [0, 0]
    assert firsts[0]["loss"] == firsts[1]["loss"]
    assert {len(point["acceptance"]) for point in found.report["curve"]} == {2}
    assert found.report["settings"]["unroll_warmup"] == 0.0
    assert found.report["curve"][-1]["loss"] < firsts[0]["loss"]
    assert "start" not in trained(place, tmp_path / "new", {}).report
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
        assert found.report["start"] == {"id": "user/first", "hash": start.commit}
