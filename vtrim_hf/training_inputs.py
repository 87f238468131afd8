"""What a training starts from: sequences, the target's reader, and the caches of features."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from .compatibility import check_loaded, check_pair
from .confidence import CALIBRATION
from .decoding_ways import machine_facts
from .feature_cache import CachedSequences, FeatureCache, features_folder
from .model_hash import model_hash
from .training_answers import AnsweredData
from .training_arguments import DraftTrainingArguments
from .training_data import TrainingSequences, read_sequences
from .training_features import TargetReader, Teacher
from .training_report import TrainingReport
from .training_split import warn_of_shared_prompts
from .vocabulary import tokenizer_fingerprint


class TrainingInputs:
    """Reads the data of one training.

    Args:
        draft: the draft.
        target: its target.
        args: the settings.
        tokenizer: the target's, or None if only sequences are given.
        chat_template: see `ChatRenderer`.
        template_kwargs: see `ChatRenderer`.
        split: of a data set that has several.
        report: takes the time that it takes.

    Attributes:
        reader: of the target.
        caches: of features, to be filled before they are read.
    """

    def __init__(
        self,
        draft: Any,
        target: Any,
        args: DraftTrainingArguments,
        tokenizer: Any,
        chat_template: str | bool | None,
        template_kwargs: Mapping[str, Any] | None,
        split: str | None,
        report: TrainingReport,
    ) -> None:
        self._draft, self._target, self._args = draft, target, args
        self._tokenizer, self._report = tokenizer, report
        self._rendering = {"chat_template": chat_template, "template_kwargs": template_kwargs}
        self._split = split
        dtype: torch.dtype = getattr(torch, args.feature_dtype)
        self.reader = TargetReader(target, draft.config.target_layer_ids, dtype)
        self.target_fingerprint = model_hash(self.reader.target)
        self.caches: list[FeatureCache] = []
        self._first: TrainingSequences | None = None
        self._known: dict[str, str | None] = {}

    def read(self, train: object, evaluation: object) -> tuple[Any, Any]:
        """Return the data sets to train on and to evaluate on; None where there is none."""
        held: TrainingSequences | None = None
        trained: TrainingSequences | None = None
        answered = self._answered(train, evaluation)
        if evaluation is not None:  # first: of a timed answering it takes the smaller part
            held, _ = self._sequences(evaluation, 0.0, "evaluation", answered)
        if train is not None:
            share = self._args.heldout if evaluation is None else 0.0
            trained, apart = self._sequences(train, share, "train", answered)
            if held is None:
                held = apart
            else:
                warn_of_shared_prompts(trained.prompts, held.prompts)
        if held is None or not len(held):
            if trained is not None:
                raise ValueError(
                    "there is nothing to choose the best checkpoint by: pass eval_dataset, or "
                    "conversations instead of sequences"
                )
            held = None
        self._first = trained or held
        return self._with_features("train", trained), self._with_features("evaluation", held)

    def prove(self, teacher: Teacher) -> None:
        """Prove the teacher on the first sequence; see `TargetReader.prove`."""
        if self._first is not None:
            self.reader.prove(self._first[0]["input_ids"].tolist(), teacher)

    def fill(self, check: Callable[[], None]) -> None:
        """Fill the caches of features, once; of several processes the main one does.

        Args:
            check: called after each batch that the target has read; what it raises ends it.
        """
        if not self.caches:
            return

        def on_batch() -> None:
            self._report.save()
            check()

        with self._report.timed("features"), self._args.main_process_first(desc="features"):
            for cache in self.caches:
                cache.fill(
                    tokens_at_once=self._args.feature_tokens,
                    progress=not self._args.disable_tqdm,
                    on_batch=on_batch,
                )
        self.caches = []

    def record(self, train: Any, evaluation: Any) -> None:
        """Tell the report what this is a training of, and what it is trained with.

        Args:
            train: what `read` returned.
            evaluation: the same.
        """
        self._report.data["settings"] = {
            **self._args.recorded(),
            "eval_on_start": self._args.eval_on_start,
            "mlp_width": self._draft.config.body_config.intermediate_size,
            "target_dtype": str(self.reader.target.dtype).removeprefix("torch."),
        }
        self._report.data["machine"] = machine_facts(self._draft)
        self._report.data["fingerprints"] = self.fingerprints()
        self._report.data["data"] = {
            "train": train and train.facts(),
            "evaluation": evaluation and evaluation.facts(),
        }
        self._report.count_interrupted()

    def fingerprints(self) -> dict[str, str | None]:
        """Return what tells this training apart from those that are no continuation of it."""
        config = self._draft.config
        return {
            "vocabulary": config.vocabulary_fingerprint,
            "target": self.target_fingerprint,
            "layers": ",".join(map(str, config.target_layer_ids)),
            "tokenizer": tokenizer_fingerprint(self._tokenizer) if self._tokenizer else None,
            **self._known,
        }

    def _answered(self, *data: object) -> AnsweredData | None:
        """Return what answers prompts, if the target is to answer any."""
        asked = [one for one in data if not isinstance(one, TrainingSequences | None)]
        if not asked or not self._args.regenerate or self._tokenizer is None:
            return None
        answered = AnsweredData(
            self.reader.target,
            self.target_fingerprint,
            self._tokenizer,
            self._args,
            self._rendering,
            self._split,
            self._report,
        )
        answered.count_interrupted(*asked)
        return answered

    def _sequences(
        self, data: object, heldout: float, part: str, answered: AnsweredData | None
    ) -> tuple[TrainingSequences, TrainingSequences]:
        if isinstance(data, TrainingSequences):
            return data, TrainingSequences.from_pairs([])
        if self._tokenizer is None:
            raise ValueError("reading conversations needs the target's tokenizer: pass tokenizer=")
        rendering: dict[str, Any] = dict(self._rendering)
        name = "answers.jsonl" if part == "train" else "eval_answers.jsonl"
        with self._args.main_process_first(desc=name):
            return read_sequences(
                data if answered is None else answered.rows(data, part, name),
                self._tokenizer,
                max_length=self._args.max_length,
                vocab_size=self.reader.width,
                heldout=heldout,
                split=None if self._args.regenerate else self._split,
                progress=not self._args.disable_tqdm,
                **rendering,
            )

    def _with_features(self, name: str, sequences: TrainingSequences | None) -> Any:
        self._known[name] = None if sequences is None else sequences.fingerprint
        if sequences is None or self._args.feature_cache is None:
            return sequences
        cache = FeatureCache(
            features_folder(self._args.feature_cache),
            sequences,
            self.reader,
            self.target_fingerprint,
        )
        self.caches.append(cache)
        return CachedSequences(sequences, cache)


def check_models(draft: Any, target: Any, args: Any, tokenizer: Any) -> None:
    """Raise unless a draft can be trained for a target."""
    check_loaded(draft, "draft")
    check_loaded(target, "target")
    if not isinstance(args, DraftTrainingArguments):
        raise TypeError(f"args must be DraftTrainingArguments, got {type(args).__name__}")
    if getattr(draft.config, "body", None) != "eagle3":
        raise ValueError(
            "DraftTrainer trains drafts with an EAGLE-3 body, which read the target's states, "
            f"got body={getattr(draft.config, 'body', None)!r}: make one with "
            "TrimmedDraftForCausalLM.for_target, or train a standalone draft with "
            "transformers.Trainer, as any causal language model"
        )
    check_pair(target, draft, tokenizer=tokenizer)


def forget_measurements(draft: Any) -> None:
    """Take from a draft that is trained on what was found of it before.

    How it decoded, how it was trained and how sure it may be of its guesses hold no longer. What
    its vocabulary covers does, for that stays.

    Args:
        draft: whose `coverage_metadata` and `generation_config` are changed.
    """
    if draft.coverage_metadata is not None:
        of_weights = ("decoding", "training")
        facts = draft.coverage_metadata
        draft.coverage_metadata = {n: facts[n] for n in facts if n not in of_weights}
    if getattr(draft.generation_config, CALIBRATION, None) is not None:
        setattr(draft.generation_config, CALIBRATION, None)


def kept_ids(draft: Any) -> torch.Tensor:
    """Return a draft's kept ids, int64 [k]; all of them if it has no table."""
    kept: torch.Tensor | None = draft.kept_ids
    return torch.arange(draft.config.vocab_size) if kept is None else kept
