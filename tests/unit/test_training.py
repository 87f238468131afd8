from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

from drafting import make_draft, make_eagle
from tiny_models import make_tiny
from training_samples import PROMPT, fluent_target, rule_texts, said_by, settings
from vtrim_hf.measuring import measure_decoding
from vtrim_hf.training import DraftTrainer
from vtrim_hf.training_checkpoints import last_whole_checkpoint
from vtrim_hf.training_data import TrainingSequences
from vtrim_hf.training_facts import TRAINING_JSON
from vtrim_hf.training_pace import NoTimeLeftError
from vtrim_hf.training_report import PARTS


@pytest.fixture(scope="module")
def fluent() -> Any:
    torch.manual_seed(0)
    return fluent_target()


@pytest.fixture(scope="module")
def texts(fluent: Any) -> Any:
    torch.manual_seed(1)
    return said_by(fluent, rule_texts(36, PROMPT))


def new_draft(target: Any, ids: Any = None) -> Any:
    torch.manual_seed(3)
    return make_eagle(target, ids, initializer_range=0.1)


class Losses(TrainerCallback):
    """Keeps the loss of each step; stops, as a kill would, in the middle of one."""

    def __init__(self, kill_at: int | None = None) -> None:
        self.seen: list[tuple[int, float]] = []
        self._kill_at = kill_at

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if "loss" in logs:
            self.seen.append((state.global_step, logs["loss"]))

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self._kill_at:
            raise KeyboardInterrupt


def trainer_of(
    target: Any, texts: Any, folder: Path, *callbacks: Any, draft: Any = None, **wishes: Any
) -> DraftTrainer:
    draft = new_draft(target) if draft is None else draft
    held = wishes.pop("held", texts)
    return DraftTrainer(
        draft,
        target,
        args=settings(folder, **wishes),
        train_dataset=texts,
        eval_dataset=held,
        callbacks=callbacks,
    )


def test_a_draft_learns_to_say_what_its_target_says(fluent: Any, tmp_path: Path) -> None:
    texts = said_by(fluent, rule_texts(64, PROMPT))
    held_prompts = rule_texts(12, PROMPT)
    before = copy.deepcopy(fluent.state_dict())
    draft = new_draft(fluent)
    trainer = trainer_of(
        fluent,
        texts,
        tmp_path,
        draft=draft,
        held=said_by(fluent, held_prompts),
        max_steps=90,
        learning_rate=6e-3,
        per_device_train_batch_size=16,
        feature_cache=str(tmp_path / "features"),
        logging_steps=50,
    )
    trainer.train()
    found = trainer.evaluate()
    assert found["eval_acceptance_1"] > 0.7
    for name, weight in fluent.state_dict().items():
        assert weight.equal(before[name]), f"the target's {name} was changed"
    assert set(draft.state_dict()) == set(new_draft(fluent).state_dict())
    assert not draft.training
    report = measure_decoding(
        fluent,
        draft,
        list(held_prompts),
        max_new_tokens=20,
        num_assistant_tokens=4,
        assistant_confidence_threshold=0.0,
        warmup=0,
        plain_dtypes=(),
        progress=False,
    )
    assert report.acceptance_rate is not None
    assert report.acceptance_rate > 0.5
    assert report.identical
    # All columns of the texts against those where rounds began: the same up to chance.
    assert report.acceptance_length == pytest.approx(found["eval_acceptance_length"], rel=0.2)


def test_accumulated_gradients_are_those_of_one_batch(
    fluent: Any, texts: Any, tmp_path: Path
) -> None:
    weights = []
    # Of different lengths, so that micro-batches differ in their columns; all in each step.
    items = [texts[at] for at in range(12)]
    few = TrainingSequences.from_pairs(
        (item["input_ids"][: 8 + at], item["assistant_mask"][: 8 + at])
        for at, item in enumerate(items)
    )
    for batch, times in ((12, 1), (4, 3), (5, 3)):
        draft = new_draft(fluent)
        trainer_of(
            fluent,
            few,
            tmp_path / str(batch),
            draft=draft,
            max_steps=2,
            per_device_train_batch_size=batch,
            gradient_accumulation_steps=times,
            optim="sgd",
            warmup_steps=0,
            lr_scheduler_type="constant",
            learning_rate=0.05,
        ).train()
        weights.append(copy.deepcopy(draft.state_dict()))
    moved = new_draft(fluent).state_dict()
    name = "body.midlayer.mlp.down_proj.weight"
    assert not weights[0][name].equal(moved[name])
    for other in weights[1:]:
        for name, weight in weights[0].items():
            torch.testing.assert_close(weight, other[name], rtol=1e-4, atol=1e-6)


def test_cached_features_give_the_losses_of_online_ones(
    fluent: Any, texts: Any, tmp_path: Path
) -> None:
    found = []
    for cache in (None, str(tmp_path / "features")):
        losses = Losses()
        trainer_of(
            fluent,
            texts,
            tmp_path / str(cache is None),
            losses,
            feature_cache=cache,
            feature_dtype="float32",
        ).train()
        found.append([loss for _, loss in losses.seen])
    assert len(found[0]) == 4
    assert found[0] == pytest.approx(found[1], rel=1e-6)


def test_training_goes_on_after_a_kill_with_the_same_losses(
    fluent: Any, texts: Any, tmp_path: Path
) -> None:
    common = {"max_steps": 22, "save_strategy": "steps", "save_steps": 4}  # 9 steps an epoch
    whole = Losses()
    trainer_of(fluent, texts, tmp_path / "whole", whole, **common).train()

    folder = tmp_path / "killed"
    first = Losses(kill_at=15)
    with pytest.raises(KeyboardInterrupt):
        trainer_of(fluent, texts, folder, first, **common).train()
    # What a kill in the middle of saving leaves: no state that is written last.
    torn = folder / "checkpoint-14"
    shutil.copytree(folder / "checkpoint-12", torn)
    (torn / "trainer_state.json").write_text('{"epoch":')
    second = Losses()
    again = trainer_of(fluent, texts, folder, second, **common)
    again.train(resume_from_checkpoint=True)
    assert not torn.exists()
    assert [step for step, _ in second.seen] == list(range(13, 23))
    assert second.seen == whole.seen[12:]
    report = json.loads((folder / TRAINING_JSON).read_text())
    assert [point["step"] for point in report["curve"]] == list(range(1, 23))
    assert [point["loss"] for point in report["curve"]] == [loss for _, loss in whole.seen]
    assert report["tokens_seen"] == 22 * 4 * 26
    assert report["finished"]
    last = last_whole_checkpoint(folder)
    assert last is not None
    assert last.name == "checkpoint-22"


def test_a_log_after_a_kill_is_over_all_steps_since_the_one_before(
    fluent: Any, texts: Any, tmp_path: Path
) -> None:
    """[it was over those since the checkpoint, which lies between two logs]"""
    common = {"max_steps": 24, "logging_steps": 10, "save_strategy": "steps", "save_steps": 7}
    whole = trainer_of(fluent, texts, tmp_path / "whole", **common)
    whole.train()
    with pytest.raises(KeyboardInterrupt):
        trainer_of(fluent, texts, tmp_path / "killed", Losses(kill_at=17), **common).train()
    again = trainer_of(fluent, texts, tmp_path / "killed", **common)
    again.train(resume_from_checkpoint=True)
    found, expected = (one.report.data["curve"] for one in (again, whole))
    assert [point["step"] for point in found] == [10, 20, 24]
    for name in ("loss", "acceptance_length", "masked_share", "tokens"):
        assert [point[name] for point in found] == [point[name] for point in expected], name
    state = json.loads((tmp_path / "killed" / "checkpoint-24" / "draft_training.json").read_text())
    assert state["sums"] == [], "a log has just had them"


def test_another_training_s_checkpoint_is_refused(fluent: Any, texts: Any, tmp_path: Path) -> None:
    trainer_of(fluent, texts, tmp_path, save_strategy="steps", save_steps=2).train()
    other = trainer_of(fluent, texts, tmp_path, draft=new_draft(fluent, range(10, 80)))
    with pytest.raises(ValueError, match="of another vocabulary"):
        other.train(resume_from_checkpoint=True)
    with pytest.raises(ValueError, match="no whole checkpoint"):
        trainer_of(fluent, texts, tmp_path / "empty").train(resume_from_checkpoint=True)
    (tmp_path / "checkpoint-4" / "draft_training.json").unlink()
    with pytest.raises(ValueError, match="no whole checkpoint"):
        trainer_of(fluent, texts, tmp_path).train(str(tmp_path / "checkpoint-4"))


class Spoil(TrainerCallback):
    """Ruins the draft at every step from one on."""

    def __init__(self, since: int) -> None:
        self._since = since

    def on_step_end(self, args: Any, state: Any, control: Any, **known: Any) -> None:
        if state.global_step >= self._since:
            with torch.no_grad():
                known["model"].body.lm_head.weight.zero_()


def test_the_best_checkpoint_is_the_one_that_stays(
    fluent: Any, texts: Any, tmp_path: Path
) -> None:
    draft = new_draft(fluent)
    trainer = trainer_of(
        fluent,
        texts,
        tmp_path,
        Spoil(41),
        draft=draft,
        max_steps=46,
        learning_rate=4e-3,
        eval_strategy="steps",
        eval_steps=20,
        save_strategy="steps",
        save_steps=20,
        load_best_model_at_end=True,
    )
    trainer.train()
    points = trainer.report.data["evaluations"]
    assert [point["step"] for point in points] == [20, 40, 46], "the end is evaluated, too"
    lengths = [point["acceptance_length"] for point in points]
    assert lengths[1] > lengths[0]
    assert lengths[1] > lengths[2]
    assert trainer.report.data["best"]["step"] == 40
    assert trainer.evaluate()["eval_acceptance_length"] == pytest.approx(lengths[1], rel=1e-6)
    assert draft.body.lm_head.weight.abs().sum() > 0


@pytest.mark.parametrize(("loads_best", "taken"), [(True, 30), (False, 60)])
def test_the_report_names_the_weights_that_were_taken(
    fluent: Any, texts: Any, tmp_path: Path, loads_best: bool, taken: int
) -> None:
    """[it named the best evaluation, whether its weights were saved or not]"""
    trainer = trainer_of(
        fluent,
        texts,
        tmp_path,
        Spoil(46),
        max_steps=60,
        learning_rate=6e-3,
        per_device_train_batch_size=16,
        feature_cache=str(tmp_path / "features"),
        eval_strategy="steps",
        eval_steps=15,
        save_strategy="steps",
        save_steps=30,
        load_best_model_at_end=loads_best,
    )
    trainer.train()
    length = {p["step"]: p["acceptance_length"] for p in trainer.report.data["evaluations"]}
    assert max(length, key=lambda step: length[step]) == 45, "it was not saved"
    best = json.loads((tmp_path / TRAINING_JSON).read_text())["best"]
    assert best == {"step": taken, "acceptance_length": length[taken]}
    found = trainer.evaluate()["eval_acceptance_length"]
    assert found == pytest.approx(best["acceptance_length"], rel=1e-6)


def test_a_draft_that_training_on_makes_worse_is_kept(
    fluent: Any, texts: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """[its weights were lost: they were never evaluated, and no candidate for the best]"""
    common = {"feature_cache": str(tmp_path / "features"), "per_device_train_batch_size": 16}
    draft = new_draft(fluent)
    trainer_of(
        fluent, texts, tmp_path / "first", draft=draft, max_steps=40, learning_rate=6e-3, **common
    ).train()
    start = copy.deepcopy(draft.state_dict())
    evaluated: list[int] = []

    class Count(TrainerCallback):
        def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            evaluated.append(state.global_step)

    def further(folder: Path, *callbacks: Any, given: Any, **wishes: Any) -> DraftTrainer:
        steps = {"eval_strategy": "steps", "eval_steps": 4, "save_strategy": "steps"}
        return trainer_of(
            fluent,
            texts,
            folder,
            Count(),
            *callbacks,
            draft=given,
            eval_on_start=True,
            load_best_model_at_end=True,
            **{**steps, "save_steps": 4, "max_steps": 8, **common, **wishes},
        )

    given = copy.deepcopy(draft)
    with pytest.raises(KeyboardInterrupt):
        further(tmp_path / "worse", Spoil(1), Losses(kill_at=6), given=given).train()
    assert evaluated == [0, 4]
    # What the next process is given does not matter: the checkpoints hold the start.
    again = further(tmp_path / "worse", Spoil(1), given=given)
    again.train(resume_from_checkpoint=True)
    assert evaluated == [0, 4, 8]
    report = json.loads((tmp_path / "worse" / TRAINING_JSON).read_text())
    points = report["evaluations"]
    assert [point["step"] for point in points] == [0, 4, 8]
    assert report["best"] == {"step": 0, "acceptance_length": points[0]["acceptance_length"]}
    assert points[0]["acceptance_length"] > 1.5
    assert points[0]["tokens"] == 0
    for name, weight in again.model.state_dict().items():
        assert torch.equal(weight, start[name]), name
    assert "no checkpoint is better than the draft that was given" in caplog.text
    # One that was killed before its first checkpoint goes on from the start.
    caplog.clear()
    longer = {"max_steps": 12, "learning_rate": 3e-3, "unroll_warmup": 0.0}
    with pytest.raises(KeyboardInterrupt):
        further(tmp_path / "soon", Losses(kill_at=2), given=copy.deepcopy(draft), **longer).train()
    better = further(tmp_path / "soon", given=new_draft(fluent), **longer)
    better.train(resume_from_checkpoint=True)
    assert evaluated == [0, 4, 8, 0, 4, 8, 12]
    assert better.report.data["best"]["step"] > 0
    assert "no checkpoint is better" not in caplog.text


def test_a_training_warms_up_with_fewer_tokens_in_a_row(
    fluent: Any, texts: Any, tmp_path: Path
) -> None:
    trainer = trainer_of(fluent, texts, tmp_path, max_steps=4, unroll_warmup=0.5, logging_steps=1)
    trainer.train()
    found = trainer.evaluate()
    curve = trainer.report.data["curve"]
    assert [len(point["acceptance"]) for point in curve] == [2, 2, 4, 4]
    assert "eval_acceptance_4" in found
    # As many tokens in a row as they are, the loss is that of one: it does not double with them.
    losses = [point["loss"] for point in curve]
    assert losses[2] == pytest.approx(losses[1], rel=0.3)
    assert found["eval_loss"] == pytest.approx(losses[3], rel=0.3)


def test_the_report_holds_what_was_done(fluent: Any, texts: Any, tmp_path: Path) -> None:
    draft = new_draft(fluent, range(10, 60))
    trainer = trainer_of(
        fluent,
        texts,
        tmp_path,
        draft=draft,
        feature_cache=str(tmp_path / "f"),
        eval_strategy="steps",
        eval_steps=4,
    )
    trainer.train()
    found = json.loads((tmp_path / TRAINING_JSON).read_text())
    assert found["fingerprints"]["vocabulary"] == draft.config.vocabulary_fingerprint
    assert found["fingerprints"]["train"] == texts.fingerprint
    assert found["settings"]["unroll_steps"] == 4
    assert found["settings"]["world_size"] == 1
    width = draft.body.midlayer.mlp.down_proj.in_features
    wishes = {"mlp_width": width, "target_dtype": "float32", "regenerate_tokens": 256}
    assert found["settings"].items() >= {**wishes, "regenerate_limit": None}.items()
    assert found["machine"]["device"] == "cpu"
    assert found["machine"]["threads"] == torch.get_num_threads()
    assert found["machine"]["versions"]["transformers"]
    assert found["data"]["train"]["tokens"] == 36 * 26
    assert 0 < found["masked_share"] < 1
    assert set(found["seconds"]) == set(PARTS)
    assert found["seconds"]["training"] > 0
    assert found["seconds"]["features"] > 0
    (point,) = found["evaluations"]
    assert len(point["acceptance"]) == 4
    assert point["acceptance_length"] == pytest.approx(1 + sum(point["acceptance"]))
    assert [p["step"] for p in found["curve"]] == [1, 2, 3, 4]
    assert found["curve"][-1]["tokens"] == 4 * 4 * 26


def test_what_comes_after_a_training_is_no_part_of_its_report(
    fluent: Any, texts: Any, tmp_path: Path
) -> None:
    trainer = trainer_of(fluent, texts, tmp_path, eval_strategy="steps", eval_steps=2, max_steps=4)
    trainer.evaluate()  # before, too
    trainer.train()
    kept = (tmp_path / TRAINING_JSON).read_text()
    assert [point["step"] for point in json.loads(kept)["evaluations"]] == [2, 4]
    few = said_by(fluent, rule_texts(4, PROMPT))
    found = trainer.evaluate(few)
    trainer.pace.note(trainer.report)  # nor does its clock run on
    trainer.report.save()
    assert found["eval_acceptance_length"] >= 1
    assert (tmp_path / TRAINING_JSON).read_text() == kept


def test_a_trainer_that_only_evaluates_leaves_an_earlier_report(
    fluent: Any, texts: Any, tmp_path: Path
) -> None:
    """[it wrote its own over it, in which nothing was]"""
    wishes = {"feature_cache": str(tmp_path / "features"), "eval_strategy": "steps"}
    with pytest.raises(KeyboardInterrupt):
        trainer_of(fluent, texts, tmp_path, Losses(kill_at=2), **wishes).train()
    for finished in (False, True):
        if finished:
            trainer_of(fluent, texts, tmp_path, **wishes).train()
        kept = (tmp_path / TRAINING_JSON).read_text()
        assert json.loads(kept)["finished"] == finished
        assert json.loads(kept)["curve"]
        shutil.rmtree(tmp_path / "features")  # computed anew, and said so nowhere
        assert trainer_of(fluent, texts, tmp_path, **wishes).evaluate()
        assert (tmp_path / TRAINING_JSON).read_text() == kept


def test_a_process_that_sees_two_gpus_keeps_to_the_batch_of_one(
    fluent: Any, texts: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    args = settings(tmp_path)
    args._n_gpu = 2
    trainer = DraftTrainer(
        new_draft(fluent), fluent, args=args, train_dataset=texts, eval_dataset=texts
    )
    assert trainer._train_batch_size == args.train_batch_size == 4
    assert next(iter(trainer.get_train_dataloader()))["input_ids"].shape[0] == 4
    trainer.train()
    assert trainer.report.data["tokens_seen"] == 4 * 4 * 26
    # A recipe refuses torchrun: what it is told must be a way out for it, too.
    for words in ("CUDA_VISIBLE_DEVICES=0", "for a recipe, too", "--nproc-per-node 2"):
        assert words in caplog.text


def test_the_target_is_no_part_of_what_is_trained_or_saved(
    fluent: Any, texts: Any, tmp_path: Path
) -> None:
    draft = new_draft(fluent)
    config = json.loads(draft.config.to_json_string())
    trainer = trainer_of(fluent, texts, tmp_path, draft=draft)
    modules = set(trainer.model.modules())
    assert not modules & set(fluent.modules())
    assert trainer.model is draft
    trainer.train()
    assert json.loads(draft.config.to_json_string()) == config, "no trace in the config"
    trainer.save_model(str(tmp_path / "saved"))
    assert not modules & set(fluent.modules())
    loaded = type(draft).from_pretrained(tmp_path / "saved")
    for name, weight in loaded.state_dict().items():
        assert weight.equal(draft.state_dict()[name])
    held = {weight.data_ptr() for weight in fluent.parameters()}
    groups = trainer.optimizer.param_groups
    assert not held & {weight.data_ptr() for group in groups for weight in group["params"]}


def test_bfloat16_drafts_are_trained_in_float32(fluent: Any, texts: Any, tmp_path: Path) -> None:
    draft = new_draft(fluent).to(torch.bfloat16)
    trainer = trainer_of(fluent, texts, tmp_path, draft=draft, bf16=True)
    trainer.train()
    assert {weight.dtype for weight in draft.parameters()} == {torch.float32}
    assert all(point["loss"] is not None for point in trainer.report.data["curve"])


def test_a_timed_training_ends_in_time_and_slows_down(
    fluent: Any, texts: Any, tmp_path: Path
) -> None:
    trainer = trainer_of(
        fluent,
        texts,
        tmp_path,
        max_steps=-1,
        max_minutes=0.08,
        evaluations=3,
        eval_strategy="steps",
        save_strategy="steps",
        load_best_model_at_end=True,
    )
    trainer.train()
    data = trainer.report.data
    rates = [point["learning_rate"] for point in data["curve"]]
    assert max(rates) > 0.5e-3
    assert rates[-1] < 0.3 * max(rates)
    assert len(data["evaluations"]) >= 2
    assert data["evaluations"][-1]["step"] == data["curve"][-1]["step"]
    # The part that is not ours to decide is the step that was running.
    assert data["seconds"]["training"] < 0.08 * 60 + 5
    spent = dict(data["seconds"])
    spent["features"] = 60.0
    data["seconds"] = spent
    with pytest.raises(NoTimeLeftError, match="leaves too little to train in"):
        trainer.pace.begin()


def test_a_timed_training_goes_on_after_a_kill(
    fluent: Any, texts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its clock goes on from the checkpoint, and no evaluation comes twice."""

    class Clock(TrainerCallback):
        """A minute in which a step takes 2 seconds and an evaluation 3."""

        now, begun, killed_at = 0.0, 0, -1

        def monotonic(self) -> float:
            return self.now

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.begun += 1
            if state.global_step == self.killed_at:
                raise KeyboardInterrupt
            self.now += 2

        def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.now += 3

    wishes: dict[str, Any] = {
        "max_steps": -1,
        "max_minutes": 1,
        "evaluations": 4,
        "eval_strategy": "steps",
        "save_strategy": "steps",
        "load_best_model_at_end": True,
        "feature_cache": str(tmp_path / "features"),
    }
    found = {}
    for name, killed_at in (("whole", -1), ("killed", 18)):
        clock = Clock()
        clock.killed_at = killed_at
        for module in ("training_pace", "training_report"):
            monkeypatch.setattr(f"vtrim_hf.{module}.time", clock)
        trainer = trainer_of(fluent, texts, tmp_path / name, clock, **wishes)
        if killed_at > 0:
            with pytest.raises(KeyboardInterrupt):
                trainer.train()
            saved = trainer.report.data["evaluations"][-1]["step"]
            assert 5 < saved < killed_at - 1
            clock.killed_at, clock.begun = -1, 0
            trainer = trainer_of(fluent, texts, tmp_path / name, clock, **wishes)
            trainer.train(resume_from_checkpoint=True)
            assert saved + clock.begun == trainer.state.global_step
        else:
            trainer.train()
        found[name] = trainer.report.data
    whole, killed = found["whole"], found["killed"]
    assert len(whole["evaluations"]) == 4
    assert killed["seconds"] == pytest.approx(whole["seconds"])
    assert 55 <= sum(killed["seconds"].values()) <= 62
    for kind, names in (("evaluations", ("seconds",)), ("curve", ("learning_rate", "loss"))):
        for name in ("step", *names):
            assert [point[name] for point in killed[kind]] == pytest.approx(
                [point[name] for point in whole[kind]]
            ), name


def test_time_that_features_take_up_is_missed_before_they_are_all_there(
    fluent: Any, texts: Any, tmp_path: Path
) -> None:
    trainer = trainer_of(
        fluent,
        texts,
        tmp_path,
        max_steps=-1,
        max_minutes=10,
        feature_cache=str(tmp_path / "features"),
        feature_tokens=60,
    )
    train = trainer._inputs.caches[0]
    assert len(train._plan) == 1
    trainer.report.data["seconds"]["answers"] = 541.0  # of 600
    with pytest.raises(NoTimeLeftError, match=r"9\.0 of 10\.0 minutes"):
        trainer.train()
    assert train._shards.missing == [0]
    assert train._shards.known[0]["sequences"] == 2, "what was computed stays"
    kept = json.loads((tmp_path / TRAINING_JSON).read_text())
    assert kept["seconds"]["features"] > 0


def test_conversations_are_read_and_answered(tmp_path: Path, byte_tokenizer: Any) -> None:
    target = make_tiny("llama", num_hidden_layers=4, eos_token_id=2)
    rows = [{"prompt": f"say {n}", "completion": f"number {n} it is"} for n in range(24)]
    trainer = DraftTrainer(
        new_draft(target),
        target,
        args=settings(tmp_path, regenerate=True, regenerate_tokens=8, regenerate_limit=20),
        train_dataset=rows,
        processing_class=byte_tokenizer,
    )
    train, held = trainer.train_dataset, trainer.eval_dataset
    assert len(train) + len(held) == 20  # type: ignore[arg-type]
    assert len(held) >= 1  # type: ignore[arg-type]
    item = train[0]
    start = int(item["assistant_mask"].argmax())
    prompt = torch.from_numpy(item["input_ids"][:start].astype(int))[None]
    said = target.generate(prompt, max_new_tokens=8, do_sample=False)[0].tolist()
    assert item["input_ids"].tolist() == said
    assert trainer.report.data["seconds"]["answers"] > 0
    trainer.train()
    trainer.save_model(str(tmp_path / "saved"))
    assert (tmp_path / "saved" / "tokenizer.json").is_file()


def test_what_cannot_be_trained_is_refused(
    fluent: Any, texts: Any, tmp_path: Path, byte_tokenizer: Any
) -> None:
    with pytest.raises(ValueError, match="EAGLE-3 body"):
        trainer_of(fluent, texts, tmp_path, draft=make_draft(fluent))
    with pytest.raises(TypeError, match="the target must be a loaded"):
        DraftTrainer(new_draft(fluent), "target", args=settings(tmp_path), train_dataset=texts)
    with pytest.raises(TypeError, match="DraftTrainingArguments"):
        DraftTrainer(new_draft(fluent), fluent, args={}, train_dataset=texts)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="pass tokenizer="):
        DraftTrainer(new_draft(fluent), fluent, args=settings(tmp_path), train_dataset=[{}])
    with pytest.raises(ValueError, match="choose the best checkpoint by"):
        DraftTrainer(new_draft(fluent), fluent, args=settings(tmp_path), train_dataset=texts)
    other = make_tiny("llama", num_hidden_layers=6)
    with pytest.raises(ValueError, match="with layers 6"):
        trainer_of(fluent, texts, tmp_path, draft=new_draft(other))


def test_tensorboard_shows_the_acceptance(fluent: Any, texts: Any, tmp_path: Path) -> None:
    reading: Any = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    logs = tmp_path / "runs"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TENSORBOARD_LOGGING_DIR", str(logs))
        trainer_of(fluent, texts, tmp_path, report_to="tensorboard", max_steps=3).train()
    (events,) = logs.rglob("events.out.tfevents.*")
    found = reading.EventAccumulator(str(events.parent)).Reload()
    assert {"train/loss", "train/acceptance_length"} <= set(found.Tags()["scalars"])
    assert [point.step for point in found.Scalars("train/acceptance_length")] == [1, 2, 3]
