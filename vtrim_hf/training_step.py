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

if TYPE_CHECKING:
    from .training_arguments import DraftTrainingArguments
    from .vocabulary import DraftVocabulary

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
    data: str,
    output: Path,
    *,
    vocabulary: Path | None = None,
    start: NamedModel | None = None,
    evaluation: str | None = None,
    layers: Sequence[int] | None = None,
    split: str | None = None,
    target_dtype: str = "auto",
    dtype: str = "bfloat16",
    draft_length: int | None = None,
    resume: bool = True,
    settings: Mapping[str, Any] | None = None,
    datasets: Sequence[str] = (),
    progress: bool = True,
    on_resumed: Callable[[int], None] | None = None,
    on_evaluation: Callable[[str], None] | None = None,
) -> TrainedDraft:
    """Train an EAGLE-3 draft for a target.

    The same call goes on where it was interrupted: checkpoints and answers lie in a folder beside
    `output` whose name carries a hash of all that decides the result.

    Args:
        target: the model that will verify.
        data: file, folder or Hub id of chat data.
        output: where the draft will be saved, by the caller.
        vocabulary: a folder that holds one, and `search.json` if it came out of a search; not
            needed for a draft that is trained on.
        start: a draft to train on, whose vocabulary stays.
        evaluation: chat data to choose the best checkpoint by; a part of `data` if None.
        layers: which three of the target's hidden states are read; see `for_target`.
        split: of data sets that have several.
        target_dtype: of the target's weights, by name; "auto" takes the saved one.
        dtype: that the draft is given back in.
        draft_length: tokens drafted a round, stored with the draft.
        resume: go on with what an interrupted call left; False begins anew.
        settings: arguments of `DraftTrainingArguments` but `output_dir`; None leaves the default.
        datasets: Hub ids of the data, for the draft's metadata.
        progress: show a bar on a terminal.
        on_resumed: called with the step that the training goes on from.
        on_evaluation: called with a line of text after each evaluation.

    Raises:
        ValueError: if vocabulary, target and draft do not fit each other, before the target is
            loaded where it can be told; or as `DraftTrainer` documents.
        FileNotFoundError: if the data does not exist.
    """
    from .chat_data import open_chat_data
    from .training_arguments import DraftTrainingArguments

    chosen = {name: value for name, value in (settings or {}).items() if value is not None}
    sources = [open_chat_data(source, split=split) for source in (data, evaluation) if source]
    kept = _vocabulary(target, vocabulary, start, layers)
    call = {
        "target": target.identity,
        "data": [source.identity() if source.identity else source.name for source in sources],
        "split": split,
        "vocabulary": kept.fingerprint,
        "start": None if start is None else start.identity,
        "layers": None if layers is None else list(layers),
        "dtypes": [target_dtype, dtype],
        "draft_length": draft_length,
        "settings": {key: value for key, value in chosen.items() if key != "feature_cache"},
    }
    digest = hashlib.sha256(json.dumps(call, sort_keys=True, default=str).encode()).hexdigest()
    workplace = output.with_name(f".{output.name}.{digest[:12]}.training")
    done = _finished(output, digest) if resume else None
    if done is not None:
        return TrainedDraft(None, done, workplace)
    if not resume:
        shutil.rmtree(workplace, ignore_errors=True)
    args = DraftTrainingArguments(str(workplace), disable_tqdm=not progress, **chosen)
    trainer = _trainer(
        target, data, evaluation, args, kept, start, layers, split, target_dtype, progress
    )
    trainer.report.data["call"] = digest
    _train(trainer, workplace, progress, on_resumed, on_evaluation)
    import torch

    draft: Any = trainer.model
    draft = draft.cpu().to(getattr(torch, dtype)).eval()
    if draft_length is not None:
        draft.generation_config.num_assistant_tokens = draft_length
    _set_metadata(draft, target, vocabulary, datasets)
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


def _vocabulary(
    target: NamedModel,
    folder: Path | None,
    start: NamedModel | None,
    layers: Sequence[int] | None,
) -> DraftVocabulary | Any:
    """Return the vocabulary, or of a draft that is trained on its config, checked in pairs."""
    from .configuration_trimmed_draft import TrimmedDraftConfig
    from .eagle_target import target_facts
    from .vocabulary import DraftVocabulary, tokenizer_fingerprint

    given = None if folder is None else DraftVocabulary.load(folder)
    if given is None and start is None:
        raise ValueError(
            "a new draft needs a vocabulary: name the folder that `vtrim search` wrote, or a "
            "draft to train on"
        )
    facts = target_facts(target, layers)  # refuses layers that the target does not have
    made_for, tokenizer_hash = getattr(given, "vocab_size", None), None
    if given is not None:
        tokenizer_hash = given.tokenizer_hash
    if start is not None:
        config = start.config
        if not isinstance(config, TrimmedDraftConfig) or config.body != "eagle3":
            raise ValueError(
                f"{start} is no draft with an EAGLE-3 body, which alone can be trained on here: "
                "name a folder that `vtrim train` wrote"
            )
        if given is not None and given.fingerprint != config.vocabulary_fingerprint:
            raise ValueError(
                f"the draft {start} has the vocabulary {str(config.vocabulary_fingerprint)[:12]} "
                f"of {config.draft_vocab_size} ids, {folder} holds {given.fingerprint[:12]} of "
                f"{len(given)}: training keeps a draft's vocabulary; change it first with "
                "draft.retrim(vocabulary) or draft.extend(vocabulary, target), or leave the "
                "vocabulary out"
            )
        if layers is not None and facts["target_layer_ids"] != config.target_layer_ids:
            raise ValueError(
                f"the draft {start} reads the hidden states {config.target_layer_ids}, got "
                f"layers {list(layers)}: leave them out, or train a new draft"
            )
        made_for, tokenizer_hash = config.vocab_size, config.tokenizer_hash
    if made_for != target.vocab_size:
        raise ValueError(
            f"the vocabulary is for a target of width {made_for}, {target} has "
            f"{target.vocab_size}: count and search again with --target {target}"
        )
    found = tokenizer_fingerprint(target.tokenizer)
    if tokenizer_hash not in (None, found):
        raise ValueError(
            f"the vocabulary is of the tokenizer {str(tokenizer_hash)[:12]}, {target} has "
            f"{found[:12]}: count and search again with --target {target}"
        )
    return given if given is not None else _Known(start.config)  # type: ignore[union-attr]


class _Known:
    """What is known of the vocabulary of a draft that is not loaded yet."""

    def __init__(self, config: Any) -> None:
        self.fingerprint: str = str(config.vocabulary_fingerprint)


def _trainer(
    target: NamedModel,
    data: str,
    evaluation: str | None,
    args: DraftTrainingArguments,
    kept: Any,
    start: NamedModel | None,
    layers: Sequence[int] | None,
    split: str | None,
    target_dtype: str,
    progress: bool,
) -> Any:
    from transformers import set_seed

    from .modeling_trimmed_draft import TrimmedDraftForCausalLM
    from .training import DraftTrainer
    from .training_data import read_sequences

    train: Any = data
    held: Any = evaluation
    if not args.regenerate:
        # Without the target's answers data can be read, and refused, before the target is loaded.
        common: dict[str, Any] = {
            "max_length": args.max_length,
            "vocab_size": target.vocab_size,
            "split": split,
            "progress": progress,
        }
        share = args.heldout if evaluation is None else 0.0
        train, held = read_sequences(data, target.tokenizer, heldout=share, **common)
        if evaluation is not None:
            held, _ = read_sequences(evaluation, target.tokenizer, **common)
    model = target.model(target_dtype).to(args.device)
    set_seed(args.seed)
    draft = (
        start.model("float32")
        if start is not None
        else TrimmedDraftForCausalLM.for_target(model, kept, layers=layers)
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


def _set_metadata(
    draft: Any, target: NamedModel, vocabulary: Path | None, datasets: Sequence[str]
) -> None:
    """Let what is known of the search go with the draft."""
    from .coverage_metadata import make_metadata
    from .search_result import SearchResult

    if vocabulary is not None and (vocabulary / SEARCH_JSON).is_file():
        draft.coverage_metadata = make_metadata(
            draft,
            search=SearchResult.load(vocabulary / SEARCH_JSON),
            target_id=target.hub_id,
            datasets=datasets,
            tokenizer=target.tokenizer,
            recorded=draft.coverage_metadata,
        )


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
