"""Recipes that train their draft: the whole run, what it keeps, kills, and what is never seen."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GenerationConfig, MambaConfig

from recipes import TRAINED, make_recipe_folder, write_rows
from tiny_models import make_byte_tokenizer
from vtrim_hf import DecodeReport, SearchResult, TrimmedDraftForCausalLM, training_workplace
from vtrim_hf.measuring_step import ExtendedDraft, prompt_keys, read_prompts
from vtrim_hf.named_models import NamedModel
from vtrim_hf.recipe import load_recipe
from vtrim_hf.recipe_measuring import read_measured
from vtrim_hf.recipe_runner import RunReport, run_recipe
from vtrim_hf.recipe_training import training_settings
from vtrim_hf.run_folder import RunFolder
from vtrim_hf.run_lock import LOCK_FILE
from vtrim_hf.training_report import PARTS, TrainingReport

pytestmark = pytest.mark.newest  # on the oldest releases test_cli_training.py trains

ROOT = Path(__file__).resolve().parents[2]
ALL = ["count a", "count b", "search", "train", "measure"]


def run(folder: Path, **options: Any) -> RunReport:
    return run_recipe(
        load_recipe(folder / "recipe.yaml"), folder / "run", progress=False, **options
    )


def done(report: RunReport, status: str = "done") -> list[str]:
    return [piece.piece for piece in report.pieces if piece.status == status]


def edit(folder: Path, old: str, new: str) -> None:
    path = folder / "recipe.yaml"
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recipe that was run once; copy it before anything is changed."""
    folder = tmp_path_factory.mktemp("trained")
    make_recipe_folder(folder, TRAINED)
    lines: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vtrim_hf.recipe_work.Workshop.plot", lambda *_: None)  # takes seconds
        assert done(run(folder, on_step=lines.append)) == ALL
    assert any("train: step" in line and "acceptance length" in line for line in lines)
    return folder


@pytest.fixture
def folder(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("vtrim_hf.recipe_work.Workshop.plot", lambda *_: None)
    shutil.copytree(finished, tmp_path / "copy")
    return tmp_path / "copy"


def test_the_folder_holds_everything(finished: Path) -> None:
    place = finished / "run"
    draft = TrimmedDraftForCausalLM.from_pretrained(place / "draft")
    result = SearchResult.load(place / "search" / "search.json")
    assert (draft.config.body, draft.config.target_layer_ids) == ("eagle3", [0, 1, 2])
    assert draft.config.vocabulary_fingerprint == result.vocabulary.fingerprint
    assert draft.generation_config.num_assistant_tokens == 2
    assert draft.coverage_metadata["draft"]["k"] == result.k
    assert draft.coverage_metadata["most_missed_tokens"]
    assert result.settings["latency"]["settings"]["body"] == "eagle3"
    report = DecodeReport.load(place / "measure" / "decode_report.json")
    assert {"draft", "full"} <= set(report.entries)
    assert report.entries["full"].facts["draft_vocab_size"] == 300
    assert not [path for path in place.rglob(".*") if path.name != LOCK_FILE]

    summary = json.loads((place / "report.json").read_text("utf-8"))
    known = TrainingReport.load(place / "draft" / "training_report.json").data
    (one,) = summary["drafts"]
    told = one["training"]
    assert told["acceptance_length"] == known["best"]["acceptance_length"]
    assert told["steps"] == known["curve"][-1]["step"]
    assert told["sequences"] == known["data"]["train"]["sequences"]
    assert set(told["minutes"]) <= set(PARTS)
    text = (place / "report.md").read_text("utf-8")
    assert "draft of body eagle3, trained" in text
    assert f"Trained for {told['steps']} steps on {told['sequences']} sequences" in text
    assert f"acceptance length {told['acceptance_length']:.3f}" in text


def test_the_comparator_is_the_same_draft_with_every_id(finished: Path) -> None:
    place = finished / "run" / "draft"
    draft, target = NamedModel(str(place)), NamedModel(str(finished / "target"))
    extended = ExtendedDraft(draft, target)
    # Both end their drafts by one rule.
    own, full = (one.model("float32").generation_config for one in (draft, extended))
    assert own.assistant_confidence_calibration == full.assistant_confidence_calibration
    assert own.assistant_confidence_calibration is not None
    made = extended.model("bfloat16")
    assert str(made.dtype) == "torch.bfloat16"
    assert made.config.draft_vocab_size == 300
    trained = TrimmedDraftForCausalLM.from_pretrained(place)
    head = made.get_output_embeddings().weight
    ids = trained.vocabulary.ids
    assert torch.equal(head[ids], trained.get_output_embeddings().weight.bfloat16())
    others = torch.tensor(sorted(set(range(300)) - set(ids.tolist())))
    theirs = target.model("bfloat16").get_output_embeddings().weight[others]
    assert torch.equal(head[others], theirs)
    assert extended.identity != ExtendedDraft(target, target).identity


def test_nothing_that_is_measured_was_seen(finished: Path) -> None:
    recipe, run_folder = load_recipe(finished / "recipe.yaml"), RunFolder(finished / "run")
    tokenizer = make_byte_tokenizer()
    found = read_measured(recipe, run_folder, tokenizer, None, limit=1000)
    assert len(found["a"]) == 4
    assert len(found["b"]) >= 2
    files = [
        place(name)
        for name in "ab"
        for place in (run_folder.training_file, run_folder.evaluation_file)
    ]
    seen = {tuple(ids) for file in files for ids in read_prompts(file, tokenizer, 1000)}
    assert len(seen) == 30 + 24 - len(found["b"])
    assert not seen & {tuple(ids) for prompts in found.values() for ids in prompts}
    report = TrainingReport.load(finished / "run" / "draft" / "training_report.json").data
    by_part = {name: known["conversations"] for name, known in report["data"].items()}
    assert sum(by_part.values()) == len(seen)
    assert by_part["evaluation"] >= 2


def test_prompts_that_were_trained_on_are_passed_over(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rows(folder / "mixed.jsonl", "fox", 28, 34)  # two of which are trained on, or choose
    edit(folder, "test: a_test.jsonl", "test: mixed.jsonl")
    measured: list[Any] = []
    kept = run_recipe.__globals__["Workshop"].make

    def make(shop: Any, piece: Any) -> Any:
        if piece.step == "measure":
            measured.append(
                read_measured(
                    shop.recipe, shop.folder, shop.target.tokenizer, None, limit=9, say=shop.say
                )
            )
        return kept(shop, piece)

    monkeypatch.setattr("vtrim_hf.recipe_work.Workshop.make", make)
    remarks: list[str] = []
    # Test data is no part of what the draft is trained on.
    assert done(run(folder, say=remarks.append)) == ["measure"]
    assert len(measured[0]["a"]) == 4
    assert any("a: 2 prompts are passed over" in remark for remark in remarks)

    monkeypatch.setattr("vtrim_hf.recipe_training.train_draft", None)
    write_rows(folder / "mixed.jsonl", "fox", 3, 6)
    with pytest.raises(ValueError, match=r"recipe.yaml:10: domains.a.test: each of the 3 prompts"):
        run(folder, force=["train"])


def test_prompts_of_another_answer_are_the_same_prompt(tmp_path: Path) -> None:
    tokenizer = make_byte_tokenizer()
    turn = {"role": "user", "content": "which?"}
    for name, answer in (("one", "this"), ("two", "that")):
        row = {"messages": [turn, {"role": "assistant", "content": answer}]}
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
    keys = prompt_keys([tmp_path / "one.jsonl"], tokenizer)
    with pytest.raises(ValueError, match="each of the 1 prompts"):
        read_prompts(tmp_path / "two.jsonl", tokenizer, 1, without=keys)


def append_row(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        write_rows(folder / "more.jsonl", "rain", 90, 91)
        with (folder / name).open("a", encoding="utf-8") as file:
            file.write((folder / "more.jsonl").read_text("utf-8"))

    return change


def edited(old: str, new: str) -> Callable[[Path], None]:
    return lambda folder: edit(folder, old, new)


@pytest.mark.parametrize(
    ("change", "sure", "perhaps"),
    [
        (lambda folder: None, [], []),
        (edited("bf16: false", "bf16: false\n  feature_cache: none"), [], []),
        (edited("epochs: 3", "epochs: 2"), ["train"], ["measure"]),
        (edited("bf16: false", "bf16: false\n  seed: 1"), ["train"], ["measure"]),
        (edited("bf16: false", "bf16: false\n  minutes: 9"), ["train"], ["measure"]),
        (edited("bf16: false", "bf16: false\n  unroll_warmup: 0"), ["train"], ["measure"]),
        (edited("bf16: false", "bf16: false\n  learning_rate: 5e-4"), ["train"], ["measure"]),
        (edited("bf16: false", "target_dtype: float32"), ["train"], ["measure"]),
        (edited("  layers: [0, 1, 2]\n", ""), ["train"], ["measure"]),
        (edited("dtype: float32", "dtype: bfloat16"), ["train"], ["measure"]),
        (edited("draft_length: 2", "draft_length: 3"), ["train"], ["measure"]),
        (edited("min_coverage: 0.9", "min_coverage: 0.99"), ["search"], ["train", "measure"]),
        (append_row("a.jsonl"), ["count a"], ["search", "train", "measure"]),
        (append_row("a_test.jsonl"), ["measure"], []),
        (edited("limit: 24", "limit: 20"), ["count b"], ["search", "train", "measure"]),
        (edited("heldout: 0.4", "heldout: 0.3"), ["count b"], ["search", "train", "measure"]),
        (edited("prompts: 2", "prompts: 1"), ["measure"], []),
        (
            edited("  body: eagle3\n  layers: [0, 1, 2]\n", "  model: small\n"),
            ["count a", "count b", "search", "trim", "measure"],
            [],
        ),
    ],
)
def test_only_what_depends_on_a_change_runs_again(
    folder: Path, change: Callable[[Path], None], sure: list[str], perhaps: list[str]
) -> None:
    change(folder)
    if "trim" in sure:
        text = (folder / "recipe.yaml").read_text("utf-8")
        start, end = text.index("train:\n  epochs"), text.index("measure:")
        (folder / "recipe.yaml").write_text(text[:start] + text[end:], "utf-8")
    foreseen = run(folder, dry_run=True)
    assert (done(foreseen, "will run"), done(foreseen, "may run")) == (sure, perhaps)


def test_another_default_of_the_library_trains_anew(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = training_workplace.defaults_beside

    def later(chosen: dict[str, Any]) -> dict[str, Any]:
        return {**known(chosen), "per_device_eval_batch_size": 1}

    monkeypatch.setattr(training_workplace, "defaults_beside", later)
    foreseen = run(folder, dry_run=True)
    assert done(foreseen, "will run") == ["train"]
    assert [piece.reason for piece in foreseen.pieces if piece.step == "train"] == [
        "changed: defaults"
    ]


def test_how_long_a_training_warms_up_can_be_set(folder: Path) -> None:
    edit(folder, "bf16: false", "unroll_warmup: 0.25")
    wish = load_recipe(folder / "recipe.yaml").train
    assert wish is not None
    assert training_settings(wish)["unroll_warmup"] == 0.25
    edit(folder, "unroll_warmup: 0.25", "unroll_warmup: 1.5")
    with pytest.raises(ValueError, match=r"train.unroll_warmup must be a number .* at most 1"):
        load_recipe(folder / "recipe.yaml")


def test_a_recipe_logs_for_tensorboard(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard")
    monkeypatch.delenv("TENSORBOARD_LOGGING_DIR", raising=False)
    edit(folder, "bf16: false", "bf16: false\n  tensorboard: true")
    assert done(run(folder)) == [], "a log changes no draft"
    said: list[str] = []
    assert done(run(folder, until="train", force=["train"], say=said.append)) == ["train"]
    logs = (folder / "run" / "train.tensorboard").resolve()
    assert f"train: logs for TensorBoard go to {logs}" in said
    (events,) = logs.rglob("events.out.tfevents.*")
    assert events.stat().st_size > 0
    assert done(run(folder)) == [], "the same draft again"


def test_a_second_run_does_nothing_and_a_setting_trains_anew(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = folder / "run"
    left = [".train.0123456789ab.training/checkpoint-2", ".train.notes", ".draft.x.training"]
    for name in left:
        (place / name).mkdir(parents=True)
    with monkeypatch.context() as patch:
        patch.setattr("vtrim_hf.recipe_training.train_draft", None)
        assert done(run(folder)) == []
    # What an earlier training left goes, and what somebody else put there stays.
    assert sorted(p.name for p in place.glob(".*.*")) == sorted([*left[1:], LOCK_FILE])
    edit(folder, "epochs: 3", "epochs: 1")
    edit(folder, "draft_length: 2", "draft_length: 2\n  mlp_width: 24")
    report = run(folder)
    assert done(report) == ["search", "train", "measure"]
    assert report.pieces[2].reason == "changed: draft"
    assert "epochs, mlp_width" in (report.pieces[3].reason or "")
    draft = TrimmedDraftForCausalLM.from_pretrained(place / "draft")
    assert draft.config.body_config.intermediate_size == 24
    known = TrainingReport.load(place / "draft" / "training_report.json").data
    assert known["settings"]["num_train_epochs"] == 1


def test_a_draft_that_somebody_changed_is_trained_anew(folder: Path) -> None:
    """Although its report says that it is the draft that is wanted."""
    place = folder / "run" / "draft"
    before = (place / "model.safetensors").read_bytes()
    (place / "model.safetensors").write_bytes(before[:-1])
    report = run(folder, until="train")
    assert done(report) == ["train"]
    assert "draft/model.safetensors was changed" in report.pieces[3].reason
    assert (place / "model.safetensors").read_bytes() != before[:-1]
    # How a training went is no part of the draft: it need not be measured again.
    (place / "training_report.json").unlink()
    assert done(run(folder)) == []


def test_a_draft_for_each_domain(folder: Path) -> None:
    edit(folder, "domains:\n", "drafts: per_domain\ndomains:\n")
    edit(folder, "epochs: 3", "epochs: 1")
    report = run(folder, until="train")
    assert done(report) == ["search a", "search b", "train a", "train b"]
    sequences = {}
    for name in ("a", "b"):
        place = folder / "run" / "domains" / name
        found = SearchResult.load(place / "search" / "search.json")
        draft = TrimmedDraftForCausalLM.from_pretrained(place / "draft")
        assert draft.config.vocabulary_fingerprint == found.vocabulary.fingerprint
        assert not list(place.glob(".*"))
        known = TrainingReport.load(place / "draft" / "training_report.json").data
        sequences[name] = sum(part["sequences"] for part in known["data"].values())
    assert sequences["a"] == 30
    assert 10 < sequences["b"] < 24
    edit(folder, "    train: b.jsonl\n", "    train: b.jsonl\n    floor: 0.95\n")
    assert done(run(folder, until="train", dry_run=True), "may run") == ["train b"]


KILLED = """
import os, signal, sys
from vtrim_hf.training import DraftTrainer
kept, calls = DraftTrainer.training_step, []
def killing(*args, **kwargs):
    calls.append(1)
    if len(calls) == int(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)
    return kept(*args, **kwargs)
DraftTrainer.training_step = killing
from vtrim_hf.recipe import load_recipe
from vtrim_hf.recipe_runner import run_recipe
run_recipe(load_recipe(sys.argv[2]), sys.argv[3], progress=False, on_step=print)
"""


def test_a_killed_training_goes_on_to_the_same_draft(
    finished: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = folder / "run"
    known = json.loads((place / "run.json").read_text("utf-8"))
    del known["pieces"]["train"], known["pieces"]["measure"]
    (place / "run.json").write_text(json.dumps(known), "utf-8")
    shutil.rmtree(place / "draft")
    process = subprocess.run(
        [sys.executable, "-c", KILLED, "15", str(folder / "recipe.yaml"), str(place)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == -signal.SIGKILL, process.stdout + process.stderr
    assert "search: kept" in process.stdout
    assert not (place / "draft").exists()
    (workplace,) = place.glob(".train.*.training")
    assert list(workplace.glob("checkpoint-*"))
    from vtrim_hf.training import DraftTrainer

    steps: list[int] = []
    step = DraftTrainer.training_step

    def counted(self: DraftTrainer, *args: Any, **options: Any) -> Any:
        steps.append(self.state.global_step)
        return step(self, *args, **options)

    monkeypatch.setattr(DraftTrainer, "training_step", counted)
    remarks: list[str] = []
    assert done(run(folder, until="train", say=remarks.append)) == ["train"]
    assert any("train: going on from step 1" in remark for remark in remarks)
    assert 10 <= steps[0] < 15
    assert not workplace.exists()
    ours, theirs = (
        TrainingReport.load(one / "run" / "draft" / "training_report.json").data
        for one in (folder, finished)
    )
    assert [point["step"] for point in ours["curve"]] == [p["step"] for p in theirs["curve"]]
    for kind, figure in (("curve", "loss"), ("evaluations", "acceptance_length")):
        # A log is of the steps since the last one, and of those since the checkpoint behind it.
        values = [
            [point[figure] for point in report[kind] if kind != "curve" or point["step"] != 20]
            for report in (ours, theirs)
        ]
        assert len(values[0]) >= 3
        assert values[0] == pytest.approx(values[1], rel=1e-3)
    assert ours["best"]["step"] == theirs["best"]["step"]
    weights = [
        TrimmedDraftForCausalLM.from_pretrained(one / "run" / "draft").state_dict()
        for one in (folder, finished)
    ]
    for name, numbers in weights[0].items():
        assert torch.allclose(numbers, weights[1][name], atol=1e-4), name


def test_a_kill_before_the_draft_is_recorded_costs_no_training(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    edit(folder, "epochs: 3", "epochs: 1")
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "finished", killed)
        with pytest.raises(KeyboardInterrupt):
            run(folder, until="train")
    monkeypatch.setattr("vtrim_hf.training.DraftTrainer.training_step", None)
    assert done(run(folder, until="train")) == ["train"]
    assert not list((folder / "run").glob(".train.*"))


def write_odd_data(folder: Path) -> None:
    turn = {"role": "user", "content": "and?"}
    (folder / "silent.jsonl").write_text(json.dumps({"messages": [turn]}) + "\n")
    write_rows(folder / "one.jsonl", "fox", 1, 2)
    place = folder / "mamba"
    shutil.copytree(folder / "target", place)
    MambaConfig(vocab_size=300, hidden_size=32, num_hidden_layers=4).save_pretrained(place)
    GenerationConfig().save_pretrained(place)


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ("layers: [0, 1, 2]", "layers: [0, 1, 3]", 4, "0 (what its first layer reads) to 2"),
        ("target: target", "target: mamba", 3, "cannot return to an earlier token"),
        ("train: a.jsonl", "train: silent.jsonl", 9, "no answer that a draft could be trained on"),
        ("min_coverage: 0.9", "k_min: 301", 15, "the target"),
    ],
)
def test_what_opening_shows_is_a_mistake_with_its_line(
    folder: Path, old: str, new: str, line: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vtrim_hf.named_models.load_model", None)
    write_odd_data(folder)
    edit(folder, old, new)
    if "mamba" in new:
        edit(folder, "  layers: [0, 1, 2]\n", "")
    for dry in (True, False):
        with pytest.raises(ValueError, match="recipe") as caught:
            run(folder, dry_run=dry)
        assert f"recipe.yaml:{line}: " in str(caught.value)
        assert said in str(caught.value)


def test_what_training_needs_is_asked_for_first(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*arguments: Any, **options: Any) -> None:
        raise ImportError("training needs accelerate")

    monkeypatch.setattr("vtrim_hf.training_arguments.DraftTrainingArguments", missing)
    with pytest.raises(ValueError, match=r"recipe.yaml:17: train: training needs accelerate"):
        run(folder, dry_run=True)


def test_too_few_conversations_are_noticed_when_they_are_counted(folder: Path) -> None:
    write_odd_data(folder)
    edit(folder, "train: a.jsonl", "train: one.jsonl\n    heldout: 0")
    with pytest.raises(ValueError, match=r"recipe.yaml:9: the 1 conversations of 'a' .* too few"):
        run(folder)


def test_steps_that_a_recipe_does_not_have(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"search, train, measure, .* 'trim': .* made by train"):
        run(folder, until="trim")
    assert done(run(folder, until="train", force=["measure"], dry_run=True)) == []


def test_ctrl_c_leaves_the_old_draft(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    before = {p: p.read_bytes() for p in (folder / "run" / "draft").rglob("*") if p.is_file()}
    with monkeypatch.context() as patch:
        patch.setattr("vtrim_hf.training.DraftTrainer.save_model", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run(folder, force=["train"])
    after = {p: p.read_bytes() for p in (folder / "run" / "draft").rglob("*") if p.is_file()}
    assert after == before
    assert list((folder / "run").glob(".train.*.training"))
    assert done(run(folder)) == []
    assert not list((folder / "run").glob(".train.*"))
