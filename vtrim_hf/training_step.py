"""The step that trains a draft: models by name, checked before they are loaded, resumable.

As the other `steps`, it is one call of the library with what goes around it, and knows of no
terminal.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .named_models import NamedModel
from .training_vocabulary import checked_vocabulary

if TYPE_CHECKING:
    from .token_counts import TokenCounts
    from .training_arguments import DraftTrainingArguments

SEARCH_JSON = "search.json"


@dataclass(frozen=True)
class TrainedDraft:
    """What `train_draft` gives.

    Attributes:
        draft: with the best checkpoint's weights; None if `output` holds it already.
        report: what `training_report.json` holds.
        workplace: folder of checkpoints and answers, which may go once the draft is saved.
        is_main: whether this process, of several, is the one that saves.
    """

    draft: Any
    report: dict[str, Any]
    workplace: Path
    is_main: bool = True

    def clean_up(self) -> None:
        """Remove the workplace."""
        shutil.rmtree(self.workplace, ignore_errors=True)


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
    on_evaluation: Callable[[str], None] | None = None,
) -> TrainedDraft:
    """Train an EAGLE-3 draft for a target.

    The same call goes on where it was interrupted: checkpoints and answers lie in a folder beside
    `output` whose name carries a hash of all that decides the result.

    Args:
        target: the model that will verify.
        data: file, folder or Hub id of chat data, or several that are read one after another.
        output: where the draft will be saved, by the caller.
        vocabulary: a folder that holds one, and `search.json` if it came out of a search; `full`
            for all of the target's ids; not needed for a draft that is trained on.
        start: a draft to train on, whose vocabulary stays.
        evaluation: the same, to choose the best checkpoint by; a part of `data` if None.
        layers: which three of the target's hidden states are read; see `for_target`.
        mlp_width: of a new draft's MLP, instead of the target's: a narrower one costs less a step.
        split: of data sets that have several.
        target_dtype: of the target's weights, by name; "auto" takes the saved one.
        dtype: that the draft is given back in.
        draft_length: tokens drafted a round, stored with the draft.
        calibration_prompts: held-out prompts at most that the trained draft's confidence is fitted
            on (`calibrate_confidence`), in seconds beyond `max_minutes`; 0 for none.
        resume: go on with what an interrupted call left; False begins anew.
        settings: arguments of `DraftTrainingArguments` but `output_dir`; None leaves the default.
        datasets: Hub ids of the data, for the draft's metadata.
        counts: what was searched, for the tokens that are missed most.
        progress: show a bar on a terminal.
        on_resumed: called with the step that the training goes on from.
        on_evaluation: called with a line of text after each evaluation.

    Raises:
        ValueError: if vocabulary, target and draft do not fit each other, before the target is
            loaded where it can be told; if the target is to answer several sources; or as
            `DraftTrainer` documents.
        FileNotFoundError: if the data does not exist.
    """
    from .chat_data import open_chat_data
    from .training_arguments import DraftTrainingArguments

    chosen = {name: value for name, value in (settings or {}).items() if value is not None}
    trained_on, judged_on = _several(data), _several(evaluation)
    sources = [open_chat_data(source, split=split) for source in (*trained_on, *judged_on)]
    if chosen.get("regenerate") and max(len(trained_on), len(judged_on)) > 1:
        raise ValueError(
            f"the target answers one source, got {len(trained_on)} to train on and "
            f"{len(judged_on)} to choose the best checkpoint by: let it answer each of them "
            "first (`vtrim count --from-target`) and train on the answers"
        )
    kept = checked_vocabulary(target, vocabulary, start, layers)
    if start is not None and mlp_width is not None:
        raise ValueError(
            f"the draft {start} has an MLP already, got mlp_width={mlp_width}: leave it out, or "
            "train a new draft"
        )
    sizes = {} if mlp_width is None else {"intermediate_size": mlp_width}
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
        "settings": {key: value for key, value in chosen.items() if key != "feature_cache"},
    }
    # What only comes after the training leaves its checkpoints of use.
    workplace = output.with_name(f".{output.name}.{_digest(call)[:12]}.training")
    digest = _digest({**call, "afterwards": [dtype, draft_length, calibration_prompts]})
    done = _finished(output, digest) if resume else None
    if done is not None:
        return TrainedDraft(None, done, workplace)
    if not resume:
        shutil.rmtree(workplace, ignore_errors=True)
    args = DraftTrainingArguments(str(workplace), disable_tqdm=not progress, **chosen)
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
    trainer.report.data["call"] = digest
    trainer.report.data["datasets"] = list(datasets)
    _train(trainer, workplace, progress, on_resumed, on_evaluation)
    import torch

    from .training_calibration import calibrate_on_held_out

    draft: Any = trainer.model
    draft = draft.cpu().to(getattr(torch, dtype)).eval()
    if draft_length is not None:
        draft.generation_config.num_assistant_tokens = draft_length
    if draft.config.target_name is None:
        draft.config.target_name = target.hub_id  # an embedded target's, which its folder hides
    if calibration_prompts and trainer.args.should_save:
        with trainer.report.timed("calibration"):
            trainer.report.data["calibration"] = calibrate_on_held_out(
                draft, trainer.target, trainer.eval_dataset, calibration_prompts
            )
        trainer.report.save()
    _set_metadata(draft, target, vocabulary, datasets, counts)
    return TrainedDraft(draft, trainer.report.data, workplace, trainer.args.should_save)


def _train(
    trainer: Any,
    workplace: Path,
    progress: bool,
    on_resumed: Callable[[int], None] | None,
    on_evaluation: Callable[[str], None] | None,
) -> None:
    from transformers import PrinterCallback, ProgressCallback

    from .training_checkpoints import last_whole_checkpoint
    from .training_progress import TrainingBar

    for theirs in (PrinterCallback, ProgressCallback):  # they print to standard output
        trainer.remove_callback(theirs)
    trainer.add_callback(TrainingBar(trainer.pace.share, on_evaluation, progress))
    last = last_whole_checkpoint(workplace)
    if last is not None and on_resumed is not None:
        on_resumed(int(last.name.rpartition("-")[2]))
    trainer.train(resume_from_checkpoint=None if last is None else str(last))


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
    draft = (
        start.model("float32")
        if start is not None
        else TrimmedDraftForCausalLM.for_target(model, kept, **body)
    )
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


def _set_metadata(
    draft: Any,
    target: NamedModel,
    vocabulary: Path | None,
    datasets: Sequence[str],
    counts: TokenCounts | None,
) -> None:
    """Let what is known of the search go with the draft."""
    from .coverage_metadata import make_metadata
    from .search_result import SearchResult

    if vocabulary is not None and (vocabulary / SEARCH_JSON).is_file():
        draft.coverage_metadata = make_metadata(
            draft,
            search=SearchResult.load(vocabulary / SEARCH_JSON),
            counts=counts,
            target_id=target.hub_id,
            datasets=datasets,
            tokenizer=target.tokenizer,
            recorded=draft.coverage_metadata,
        )


def _digest(call: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(call, sort_keys=True, default=str).encode()).hexdigest()


def _finished(output: Path, digest: str) -> dict[str, Any] | None:
    """Return the report of a draft that the same call has trained and saved."""
    from .training_report import TRAINING_JSON, TrainingReport

    place = output / TRAINING_JSON
    if not place.is_file() or not (output / "model.safetensors").is_file():
        return None
    try:
        report = TrainingReport.load(place).data
    except ValueError:
        return None
    return report if report["finished"] and report.get("call") == digest else None
