"""`DraftTrainer`: trains an EAGLE-3 draft for its target, on Transformers' own `Trainer`.

The target is read, never trained, saved or moved: neither the draft nor the trainer's model holds
it. What one batch gives is the business of `training_loss.py`, where features come from that of
`feature_cache.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainerCallback

from .training_arguments import DraftTrainingArguments, keep_to_one_gpu
from .training_batches import GroupedSampler, collate
from .training_checkpoints import continued, existing_checkpoint, step_of, write_state
from .training_facts import TRAINING_JSON
from .training_features import Teacher
from .training_forward import ForwardInputs, computing_the_loss
from .training_inputs import TrainingInputs, check_models, forget_measurements, kept_ids
from .training_loss import METRIC, UnrolledLoss, added, figures
from .training_pace import Pace
from .training_progress import TrainingFlow
from .training_report import TrainingReport

__all__ = ["DraftTrainer", "DraftTrainingArguments"]

logger = logging.getLogger(__name__)


class DraftTrainer(Trainer):
    """Trains a draft with an EAGLE-3 body.

    Args:
        draft: made with `TrimmedDraftForCausalLM.for_target`, or loaded to be trained on, best
            with `args.eval_on_start`. Its weights become float32.
        target: the model that it drafts for, loaded, in any dtype, on any device.
        args: settings; `output_dir` holds checkpoints and `training_report.json`.
        train_dataset: conversations, of any shape that counting reads, or `TrainingSequences`.
        eval_dataset: the same, held out; by default `args.heldout` of the conversations are.
        processing_class: the target's tokenizer; needed unless sequences are given.
        tokenizer: another name for it.
        chat_template: see `ChatRenderer`.
        template_kwargs: see `ChatRenderer`.
        split: of a data set that has several.
        callbacks: as `Trainer` takes them.
        optimizers: as `Trainer` takes them.

    Attributes:
        report: the `TrainingReport`. Each point's `loss` is the mean over the positions at which
            there was something to learn: at each of the tokens drafted in a row, and over these
            with the weights that `step_decay` gives them.
        unroll_steps: tokens in a row that a step drafts now, see `unroll_warmup`.
        target: the target, which no model holds.

    Raises:
        TypeError: if draft or target are no loaded models.
        ValueError: if the draft has another body or target, or as `read_sequences` and
            `TargetReader.prove` document.

    Example:
        ```python
        draft = TrimmedDraftForCausalLM.for_target(target, vocabulary)
        trainer = DraftTrainer(draft, target, args=DraftTrainingArguments("out"),
                               train_dataset="answers.jsonl", tokenizer=tokenizer)
        trainer.train()
        draft.to(torch.bfloat16).save_pretrained("draft")     # the best checkpoint
        ```

        One process trains on one GPU. On two, start the script, or the command, in two:
        `torchrun --nproc-per-node 2 -m vtrim_hf.cli train ...` (or `accelerate launch`). The main
        one answers and computes features; a step then takes twice as many conversations.
    """

    args: DraftTrainingArguments
    loss_is_scaled_for_ga = True

    def __init__(
        self,
        draft: Any,
        target: Any,
        args: DraftTrainingArguments | None = None,
        train_dataset: object = None,
        eval_dataset: object = None,
        processing_class: Any = None,
        *,
        tokenizer: Any = None,
        chat_template: str | bool | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        split: str | None = None,
        callbacks: Sequence[TrainerCallback] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
    ) -> None:
        args = args if args is not None else DraftTrainingArguments("tmp_trainer")
        tokenizer = tokenizer if tokenizer is not None else processing_class
        check_models(draft, target, args, tokenizer)
        keep_to_one_gpu(args)
        self.tokenizer = tokenizer
        self.target = target
        self.report = TrainingReport(
            Path(args.output_dir or ".") / TRAINING_JSON if args.should_save else None
        )
        self.report.hold_back()
        self.pace = Pace(args, self.report)
        self._inputs = TrainingInputs(
            draft, target, args, tokenizer, chat_template, template_kwargs, split, self.report
        )
        train, evaluation = self._inputs.read(train_dataset, eval_dataset)
        draft.float()  # small steps are lost in bfloat16 weights
        use_cache = {k: v for k, v in vars(draft.config).items() if k == "use_cache"}
        super().__init__(
            model=draft,
            args=args,
            data_collator=collate,
            train_dataset=train,
            eval_dataset=evaluation,
            callbacks=[TrainingFlow(self), *(callbacks or ())],
            optimizers=optimizers,
        )
        # Transformers leaves this run's setting in the config, which the draft is saved with.
        draft.config.__dict__.pop("use_cache", None)
        draft.config.__dict__.update(use_cache)
        self._forward = ForwardInputs(self._inputs.reader, args.device, bool(args.bf16))
        self._teacher = Teacher(target, kept_ids(draft), args.device)
        self._inputs.prove(self._teacher)
        self.train_sampler: GroupedSampler | None = None
        self.unroll_steps = int(args.unroll_steps or 1)
        self._sums = torch.zeros(0)
        self._evaluated: list[torch.Tensor] = []
        self._inputs.record(train, evaluation)

    def train(  # type: ignore[override]
        self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any
    ) -> Any:
        """Train; afterwards the draft holds the best weights, see `load_best_model_at_end`.

        Args:
            resume_from_checkpoint: a checkpoint's folder, or True for the last one of
                `args.output_dir` that was written to its end.
            **kwargs: as `Trainer.train` takes them.

        Raises:
            ValueError: if there is no such checkpoint, or it is one of another vocabulary, target
                or data.
            NoTimeLeftError: if answers and features took up `max_minutes`.
        """
        if resume_from_checkpoint is True:
            resume_from_checkpoint = str(existing_checkpoint(self.args.output_dir or "."))
        self._sums = torch.zeros(0)
        if resume_from_checkpoint:
            sums = continued(resume_from_checkpoint, self.report)
            # Of all processes together, and they will be added up again.
            self._sums = sums if self.args.process_index == 0 else torch.zeros_like(sums)
        self.report.begin()
        forget_measurements(self.model)
        self._inputs.fill(self.pace.check)
        self.pace.begin()
        wanted = self.args.eval_on_start
        self.args.eval_on_start = wanted and not resume_from_checkpoint  # it is in the checkpoint
        try:
            with self._computing_the_loss():
                done = super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)
        finally:
            self.args.eval_on_start = wanted
            self.pace.end()
            self.is_in_train = False  # Trainer leaves it set where it was interrupted
        draft: Any = self.model
        draft.eval()
        best = self.state.best_model_checkpoint if self.args.load_best_model_at_end else None
        step = self.state.global_step if best is None else step_of(best)
        self.report.finish(step)
        if best is not None and step == 0 and self.is_world_process_zero():
            logger.warning(
                "no checkpoint is better than the draft that was given (acceptance length %.3f, "
                "held out): it is kept; train longer, on more data, or with a lower learning rate",
                self.report.data["best"][METRIC],
            )
        return done

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluate; the metrics hold `acceptance_length` and the acceptance by position.

        The report holds those evaluations that `train` asks for, and their time.
        """
        self._inputs.fill(self.pace.check)
        timed = self.pace.evaluating() if self.is_in_train else nullcontext()
        with self._computing_the_loss(), timed:
            found: dict[str, float] = super().evaluate(*args, **kwargs)
        if self.is_in_train:
            if self.state.global_step == 0 and self.args.load_best_model_at_end:
                self._keep_the_start(found)
            self.report.save()
        return found

    # What Trainer asks for.

    def _get_train_sampler(self, train_dataset: Any = None) -> GroupedSampler:
        data: Any = train_dataset if train_dataset is not None else self.train_dataset
        together = self.args.train_batch_size * self.args.world_size
        seed = self.args.data_seed if self.args.data_seed is not None else self.args.seed
        self.train_sampler = GroupedSampler(data.lengths, together, seed)
        return self.train_sampler

    def _get_eval_sampler(self, eval_dataset: Any) -> Any:
        return eval_dataset.lengths.argsort(kind="stable").tolist()  # little is padded

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> Any:
        """Count a step's columns on all processes, so that sums may be added; its tokens, too."""
        if not batch_samples:
            return None
        each = [((one["runs"] > 0).sum(), one["lengths"].sum()) for one in batch_samples]
        counts = torch.tensor(each).sum(0).to(device)
        if self.args.world_size > 1:
            counts = self.accelerator.reduce(counts, "sum")
        self.report.data["tokens_seen"] += int(counts[1])
        return counts[0].clamp(min=1)

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """Return the loss of a batch over the columns of the whole step."""
        training = bool(model.training)
        steps = self.unroll_steps if training else int(self.args.acceptance_steps or 1)
        found: UnrolledLoss = model(**self._forward.inputs(inputs, steps))
        if num_items_in_batch is None:
            num_items_in_batch = (inputs["runs"] > 0).sum().clamp(min=1)
        loss = found.total / num_items_in_batch
        if training:
            loss = loss * self.args.world_size  # gradients are averaged over processes
            self._sums = added(self._sums, found.sums.sum(0))
        return (loss, found) if return_outputs else loss

    def prediction_step(
        self,
        model: Any,
        inputs: dict[str, Any],
        prediction_loss_only: bool,  # noqa: ARG002
        ignore_keys: list[str] | None = None,  # noqa: ARG002
    ) -> tuple[torch.Tensor, None, None]:
        """Evaluate a batch; its sums are kept for the metrics."""
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad():
            loss, found = self.compute_loss(model, inputs, return_outputs=True)
        self._evaluated.append(self.accelerator.gather_for_metrics(found.sums).cpu())
        return loss.detach(), None, None

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate, and replace the metrics by those of all columns together."""
        self._evaluated = []
        output: Any = super().evaluation_loop(*args, **kwargs)
        prefix = kwargs.get("metric_key_prefix", "eval")
        sums = torch.cat(self._evaluated).double().sum(0)
        found = figures(sums, float(self.args.step_decay))
        output.metrics.update({f"{prefix}_{name}": value for name, value in found.items()})
        if prefix == "eval" and self.is_in_train:
            self.report.add("evaluations", self.state, found)
        return output

    def log(self, logs: Any, start_time: float | None = None) -> None:
        """Log, with loss and acceptance of the batches since the last log.

        Trainer's own loss is the sum over all tokens drafted in a row: it jumps when they double.
        """
        if "loss" in logs and self._sums.numel():
            sums = self._sums_of_all().double().cpu()
            logs.update(figures(sums, float(self.args.step_decay)))
            self._sums = torch.zeros(0)
            self.pace.note(self.report)
            self.report.add("curve", self.state, logs)
            self.report.data["masked_share"] = logs["masked_share"]
        super().log(logs, start_time)
        if self.is_in_train:
            self.report.save()

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Create the schedule; of a timed training it follows the time."""
        if self.args.max_minutes is not None and self.lr_scheduler is None:
            self.lr_scheduler: Any = self.pace.schedule(optimizer or self.optimizer)
            self._created_lr_scheduler = True
        return super().create_scheduler(num_training_steps, optimizer)

    def floating_point_ops(self, inputs: Any) -> int:  # noqa: ARG002
        """Return 0: the report counts time and tokens."""
        return 0

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the draft; in checkpoints also what a training needs to go on."""
        super().save_model(output_dir, _internal_call)
        sums = self._sums_of_all() if _internal_call else self._sums
        if not self.args.should_save:
            return
        folder = Path(output_dir or self.args.output_dir or ".")
        if _internal_call:
            self.pace.note(self.report)
            write_state(folder, self.report, sums)
        elif self.tokenizer is not None:
            self.tokenizer.save_pretrained(folder)

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        """Tell whether an evaluation is the best of those whose weights are saved, or will be."""
        saved = self.control.should_save or self.args.save_strategy == "best"
        return saved and bool(super()._determine_best_metric(metrics, trial))

    # What is ours.

    def _keep_the_start(self, metrics: dict[str, float]) -> None:
        """Save the weights that a training starts from as the first that may be the best."""
        super()._determine_best_metric(metrics, None)
        # Said here, for Transformers takes a best step of 0 for none.
        self.state.best_model_checkpoint = str(Path(self.args.output_dir or ".") / "checkpoint-0")
        self._save_checkpoint(self.model, None)  # type: ignore[arg-type]

    def _computing_the_loss(self) -> AbstractContextManager[None]:
        return computing_the_loss(self.model, self._teacher, float(self.args.step_decay))

    def _sums_of_all(self) -> torch.Tensor:
        """Return the sums since the last log, float32 [steps, 4], of all processes together."""
        if self.args.world_size > 1 and self._sums.numel():
            return self.accelerator.reduce(self._sums, "sum")  # type: ignore[no-any-return]
        return self._sums
