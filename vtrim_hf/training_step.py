"""The step that trains a draft: models by name, checked before they are loaded, resumable.

As the other `steps`, it is one call of the library with what goes around it, and knows of no
terminal.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .named_models import NamedModel
from .training_ending import checked_search, ready_to_save, set_metadata
from .training_vocabulary import checked_vocabulary
from .training_workplace import (
    at_work,
    deciding_settings,
    digest_of,
    finished_draft,
    finished_report,
    left_by_others,
    remove_workplace,
    tensorboard_folder,
    workplace_of,
)

if TYPE_CHECKING:
    from .token_counts import TokenCounts
    from .training_arguments import DraftTrainingArguments


@dataclass(frozen=True)
class TrainedDraft:
    """What `train_draft` gives.

    Attributes:
        draft: with the best checkpoint's weights; None if `output` holds it already.
        report: what `training_report.json` holds.
        workplace: folder of checkpoints, which may go once the draft is saved.
        is_main: whether this process, of several, is the one that saves.
    """

    draft: Any
    report: dict[str, Any]
    workplace: Path
    is_main: bool = True

    def clean_up(self) -> None:
        """Remove the workplace, unless another call has begun to work there."""
        remove_workplace(self.workplace)


def train_draft(
    target: NamedModel,
    data: str | Sequence[str],
    output: Path,
    *,
    vocabulary: Path | None = None,
    start: NamedModel | None = None,
    evaluation: str | Sequence[str] | None = None,
    layers: Sequence[int] | None = None,
    mlp_width: int | None = None,
    split: str | None = None,
    target_dtype: str = "auto",
    dtype: str = "bfloat16",
    draft_length: int | None = None,
    calibration_prompts: int = 16,
    resume: bool = True,
    settings: Mapping[str, Any] | None = None,
    datasets: Sequence[str] = (),
    counts: TokenCounts | None = None,
    progress: bool = True,
    on_resumed: Callable[[int], None] | None = None,
    on_begun_anew: Callable[[list[Path]], None] | None = None,
    on_evaluation: Callable[[str], None] | None = None,
) -> TrainedDraft:
    """Train an EAGLE-3 draft for a target.

    The same call goes on where it was interrupted: checkpoints lie in a folder beside `output`
    whose name carries a hash of what decides the result, and one call at a time works there. With
    other `max_minutes` it goes on, too, unless the target answers first, which the minutes bound.
    What else decides, `training_workplace` tells. Answers and features are kept elsewhere, where
    trainings with other settings find them: see `answers_folder` and `features_folder`.

    Args:
        target: the model that will verify.
        data: file, folder or Hub id of chat data, or several that are read one after another.
        output: where the draft will be saved, by the caller.
        vocabulary: a folder that holds one, and `search.json` if it came out of a search; `full`
            for all of the target's ids; not needed for a draft that is trained on.
        start: a draft to train on, whose vocabulary stays. It is evaluated first, and given back
            as it is if no checkpoint is better.
        evaluation: the same, to choose the best checkpoint by; a part of `data` if None.
        layers: which three of the target's hidden states are read; see `for_target`.
        mlp_width: of a new draft's MLP, instead of the target's: a narrower one costs less a step.
        split: of data sets that have several.
        target_dtype: of the target's weights, by name; "auto" takes the saved one.
        dtype: that the draft is given back in.
        draft_length: tokens drafted a round, stored with the draft; by default the number that
            the search chose, if it chose one.
        calibration_prompts: held-out prompts at most that the trained draft's confidence is fitted
            on (`calibrate_confidence`), in seconds beyond `max_minutes`; 0 for none.
        resume: go on with what an interrupted call left; False begins anew.
        settings: arguments of `DraftTrainingArguments` but `output_dir`; None leaves the default.
            TensorBoard's logs go to `tensorboard_folder(output)`.
        datasets: Hub ids of the data, for the draft's metadata.
        counts: what was searched, for the tokens that are missed most.
        progress: show a bar on a terminal.
        on_resumed: called with the step that the training goes on from.
        on_begun_anew: called before the target is loaded with the folders that trainings of other
            settings left beside `output`, if there are any and this one goes on from nothing.
        on_evaluation: called with a line of text after each evaluation.

    Raises:
        ValueError: if vocabulary, target and draft do not fit each other, before the target is
            loaded where it can be told; if the target is to answer several sources; if the same
            call is running; or as `DraftTrainer` documents.
        FileNotFoundError: if the data does not exist.
    """
    from .chat_data import open_chat_data
    from .search_result import chosen_draft_length
    from .training_arguments import DraftTrainingArguments

    chosen = {name: value for name, value in (settings or {}).items() if value is not None}
    if start is not None:
        # Half as many tokens in a row at first would unlearn the later ones.
        chosen = {"eval_on_start": True, "unroll_warmup": 0.0, **chosen}
    trained_on, judged_on = _several(data), _several(evaluation)
    sources = [open_chat_data(source, split=split) for source in (*trained_on, *judged_on)]
    if chosen.get("regenerate") and max(len(trained_on), len(judged_on)) > 1:
        raise ValueError(
            f"the target answers one source, got {len(trained_on)} to train on and "
            f"{len(judged_on)} to choose the best checkpoint by: let it answer each of them "
            "first (`vtrim count --from-target`) and train on the answers"
        )
    kept = checked_vocabulary(target, vocabulary, start, layers)
    search = checked_search(vocabulary, kept.fingerprint)
    draft_length = chosen_draft_length(draft_length, search)
    if start is not None and mlp_width is not None:
        raise ValueError(
            f"the draft {start} has an MLP already, got mlp_width={mlp_width}: leave it out, or "
            "train a new draft"
        )
    sizes = {} if mlp_width is None else {"intermediate_size": mlp_width}
    args = DraftTrainingArguments(str(output), disable_tqdm=not progress, **chosen)
    call = {
        "target": target.identity,
        "data": [source.identity() if source.identity else source.name for source in sources],
        **({"trained_on": len(trained_on)} if len(trained_on) > 1 else {}),
        "split": split,
        "vocabulary": kept.fingerprint,
        "start": None if start is None else start.identity,
        "layers": None if layers is None else list(layers),
        **({} if mlp_width is None else {"mlp_width": mlp_width}),
        "target_dtype": target_dtype,
        "settings": deciding_settings(args, chosen),
    }
    # What only comes after the training leaves its checkpoints of use.
    workplace = workplace_of(output, call)
    args.output_dir = str(workplace)
    digest = digest_of({**call, "afterwards": [dtype, draft_length, calibration_prompts]})
    is_main = bool(args.should_save)
    done = finished_draft(output, digest) if resume else None
    if done is not None:
        return TrainedDraft(None, done, workplace, is_main)
    if resume and is_main and on_begun_anew is not None and not workplace.is_dir():
        left = list(left_by_others(output, workplace))
        if left:
            on_begun_anew(left)
    logs = tensorboard_folder(output) / workplace.name.split(".")[-2]
    with at_work(args, workplace, resume=resume, logs=[logs]):
        earlier = finished_report(workplace)
        trainer = _trainer(
            target,
            trained_on,
            judged_on,
            args,
            kept,
            start,
            {"layers": layers, **sizes},
            split,
            target_dtype,
            progress,
        )
        if start is not None:
            trainer.report.data["start"] = _start_facts(start)
        _log_for_tensorboard(trainer, logs)
        _train(trainer, workplace, earlier, progress, on_resumed, on_evaluation)
        trainer.report.data["call"] = digest
        trainer.report.data["datasets"] = list(datasets)
        draft = ready_to_save(trainer, target, dtype, draft_length, calibration_prompts)
    set_metadata(draft, target, search, datasets, counts)
    return TrainedDraft(draft, trainer.report.data, workplace, is_main)


def _start_facts(start: NamedModel) -> dict[str, str]:
    """Return what a report tells of a draft that was trained on, without a path."""
    if start.hub_id is not None and start.commit is not None:
        return {"id": start.hub_id, "hash": start.commit}
    content = start.identity.rpartition(":")[2]
    return {"name": Path(start.name).resolve().name, "hash": content}


def _log_for_tensorboard(trainer: Any, folder: Path) -> None:
    """Let logs outlive the workplace, in which Transformers would put them."""
    from transformers.integrations import TensorBoardCallback

    for one in trainer.callback_handler.callbacks:
        if isinstance(one, TensorBoardCallback):
            one.logging_dir = str(folder)


def _train(
    trainer: Any,
    workplace: Path,
    earlier: dict[str, Any] | None,
    progress: bool,
    on_resumed: Callable[[int], None] | None,
    on_evaluation: Callable[[str], None] | None,
) -> None:
    from transformers import PrinterCallback, ProgressCallback

    from .training_checkpoints import last_whole_checkpoint, step_of
    from .training_progress import TrainingBar

    for theirs in (PrinterCallback, ProgressCallback):  # they print to standard output
        trainer.remove_callback(theirs)
    trainer.add_callback(TrainingBar(trainer.pace.share, on_evaluation, progress))
    last = last_whole_checkpoint(workplace)
    if last is not None and on_resumed is not None:
        on_resumed(step_of(last))
    if last is not None and earlier is not None and _is_of(trainer, earlier):
        _take_up(trainer, last, earlier)
        return
    trainer.train(resume_from_checkpoint=None if last is None else str(last))


def _is_of(trainer: Any, earlier: Mapping[str, Any]) -> bool:
    """Tell whether an earlier training that came to its end is the one that is wanted."""
    wanted = {name: trainer.report.data[name] for name in ("fingerprints", "settings")}
    return bool(json.loads(json.dumps(wanted)) == {name: earlier[name] for name in wanted})


def _take_up(trainer: Any, last: Path, earlier: Mapping[str, Any]) -> None:
    """Take the weights that a finished training ended with; another step would change them.

    Args:
        trainer: of the same training.
        last: its last checkpoint.
        earlier: its report.
    """
    from .feature_cache import CachedSequences
    from .training_checkpoints import step_of

    state = json.loads((last / "trainer_state.json").read_text(encoding="utf-8"))
    best = state["best_model_checkpoint"] if trainer.args.load_best_model_at_end else None
    taken = last if best is None else last.with_name(Path(best).name)
    taken = taken if taken.is_dir() else last
    draft: Any = trainer.model
    saved: Any = type(draft).from_pretrained(taken)
    draft.load_state_dict(saved.state_dict())
    draft.eval()
    trainer.report.data.update({n: value for n, value in earlier.items() if n != "calibration"})
    trainer.report.data["seconds"]["calibration"] = 0.0
    trainer.report.begin()
    trainer.report.finish(step_of(taken))
    held = trainer.eval_dataset
    if isinstance(held, CachedSequences):  # which training would have filled
        held.cache.fill(progress=False)


def _trainer(
    target: NamedModel,
    data: tuple[str, ...],
    evaluation: tuple[str, ...],
    args: DraftTrainingArguments,
    kept: Any,
    start: NamedModel | None,
    body: Mapping[str, Any],
    split: str | None,
    target_dtype: str,
    progress: bool,
) -> Any:
    from transformers import set_seed

    from .modeling_trimmed_draft import TrimmedDraftForCausalLM
    from .training import DraftTrainer
    from .training_data import read_sequences
    from .training_inputs import forget_measurements

    # What the target is to answer is one source.
    train: Any = data[0]
    held: Any = evaluation[0] if evaluation else None
    if not args.regenerate:
        # Without the target's answers data can be read, and refused, before the target is loaded.
        common: dict[str, Any] = {
            "max_length": args.max_length,
            "vocab_size": target.vocab_size,
            "split": split,
            "progress": progress,
        }
        share = 0.0 if evaluation else args.heldout
        train, held = read_sequences(data, target.tokenizer, heldout=share, **common)
        if evaluation:
            held, _ = read_sequences(evaluation, target.tokenizer, **common)
    model = target.model(target_dtype).to(args.device)
    set_seed(args.seed)
    if start is None:
        draft = TrimmedDraftForCausalLM.for_target(model, kept, **body)
    else:
        draft = start.model("float32")
        start.release()  # which would give these weights again, trained
        forget_measurements(draft)
    return DraftTrainer(
        draft,
        model,
        args=args,
        train_dataset=train,
        eval_dataset=held,
        tokenizer=target.tokenizer,
        split=split,
    )


def _several(sources: str | Sequence[str] | None) -> tuple[str, ...]:
    return () if sources is None else (sources,) if isinstance(sources, str) else tuple(sources)
