"""`DraftTrainingArguments`: how a draft is trained; Transformers' own settings, and ours."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import torch
from transformers import TrainingArguments

from .kept_ids import whole_number
from .training_loss import METRIC

logger = logging.getLogger(__name__)

NEVER = 1_000_000_000
"""Steps between evaluations, where time and not steps decides."""

_EPOCHS, _UNTIL_THE_TIME_IS_OVER = 10.0, 10_000.0
_A_DAY = 24 * 60 * 60
_STEPS_ON_CPU, _STEPS_ON_GPU = 4, 7
FEATURE_DTYPES = ("bfloat16", "float32")


def _setting(default: Any, help_: str) -> Any:
    return field(default=default, metadata={"help": help_})


@dataclass
class DraftTrainingArguments(TrainingArguments):
    """Settings of `DraftTrainer`: those of `TrainingArguments`, with a draft's defaults, and more.

    Args:
        unroll_steps: tokens drafted in a row at every column (EAGLE-3's training-time test); None
            for 4 on a CPU and 7 on a GPU.
        unroll_warmup: share of the training, at its begin, in which only half as many tokens are
            drafted in a row (2 of 4): cheaper passes while the first position is still learnt. The
            training's own acceptance then counts so many positions only.
        step_decay: weight of a step's loss against that of the step before it.
        acceptance_steps: tokens in a row that an evaluation drafts; None for `unroll_steps`.
        feature_cache: folder in which the target's features are kept, over epochs, vocabularies
            and runs; "auto" for `vtrim_hf/features` in the user's cache; None to compute them
            anew for every batch.
        feature_dtype: that features are kept in, "bfloat16" or "float32".
        feature_tokens: tokens that the target reads at a time while the cache is filled.
        max_length: tokens of a conversation that are used at most.
        heldout: share of conversations held out for evaluation where no data is given for it.
        max_minutes: stop after this time, in which answers, features, training and evaluations
            are; reading back the best checkpoint comes on top, as does `train_draft`'s
            calibration. The learning rate falls with the time. None trains for `num_train_epochs`
            or `max_steps`.
        evaluations: how often a timed training is evaluated and saved.
        regenerate: let the target answer the data's prompts first, and train on its words. The
            answers are kept in the folder of `feature_cache`, or else in `vtrim_hf/answers` of the
            user's cache; of `max_minutes` they take at most half.
        regenerate_tokens: longest answer.
        regenerate_batch_size: prompts answered at once.
        regenerate_limit: prompts answered at most.
        bf16: compute in bfloat16 (weights stay float32); None where the machine is fast at it.
        eval_on_start: evaluate the draft as it is given, and keep it if no checkpoint is better:
            for one that is trained on. `train_draft` sets it so for its `start`.
        num_train_epochs: passes over the data; None for 10, or with `max_minutes` for as many as
            there is time for. Where both are given, whichever is over first ends the training.
        ddp_timeout: seconds that one of several processes waits for another, a day: the main one
            answers and computes features for all. PyTorch's own 1800 count on CPUs.

    Raises:
        ValueError: for a value out of range, or settings that a draft cannot be trained with.
    """

    unroll_steps: int | None = _setting(None, "Tokens drafted in a row; None: 4 on CPU, 7 on GPU.")
    unroll_warmup: float = _setting(0.6, "Share of the training that unrolls half of the steps.")
    step_decay: float = _setting(0.8, "Weight of a step's loss against the step before it.")
    acceptance_steps: int | None = _setting(None, "Tokens in a row that an evaluation drafts.")
    feature_cache: str | None = _setting(None, "Folder of the target's features, or 'auto'.")
    feature_dtype: str = _setting("bfloat16", "Number format of the features.")
    feature_tokens: int = _setting(4096, "Tokens that the target reads at a time.")
    max_length: int = _setting(2048, "Tokens of a conversation that are used at most.")
    heldout: float = _setting(0.05, "Share held out where no data for evaluation is given.")
    max_minutes: float | None = _setting(None, "Stop after this time.")
    evaluations: int = _setting(10, "How often a timed training is evaluated and saved.")
    regenerate: bool = _setting(False, "Let the target answer the prompts first.")
    regenerate_tokens: int = _setting(256, "Longest answer, with regenerate.")
    regenerate_batch_size: int = _setting(16, "Prompts answered at once, with regenerate.")
    regenerate_limit: int | None = _setting(None, "Prompts answered at most, with regenerate.")

    bf16: bool | None = _setting(None, "Compute in bfloat16; None: where the machine is fast.")  # type: ignore[assignment]
    per_device_train_batch_size: int = 8
    per_device_eval_batch_size: int = 16
    num_train_epochs: float | None = _setting(None, "Passes over the data; None: 10, or time.")  # type: ignore[assignment]
    learning_rate: float = 1e-3
    adam_beta2: float = 0.95
    lr_scheduler_type: str = "cosine"
    warmup_steps: float = 0.03
    max_grad_norm: float = 0.5
    logging_steps: float = 10
    eval_strategy: str = "steps"
    eval_steps: float | None = 0.1
    save_strategy: str = "steps"
    save_steps: float = 0.1
    save_total_limit: int | None = 2
    load_best_model_at_end: bool = True
    metric_for_best_model: str | None = METRIC
    greater_is_better: bool | None = True
    report_to: str | list[str] | None = "none"
    remove_unused_columns: bool = False
    ddp_find_unused_parameters: bool | None = False
    ddp_timeout: int = _A_DAY

    def __post_init__(self) -> None:
        self._check()
        on_gpu = torch.cuda.is_available() and not self.use_cpu
        if self.unroll_steps is None:
            self.unroll_steps = _STEPS_ON_GPU if on_gpu else _STEPS_ON_CPU
        if self.acceptance_steps is None:
            self.acceptance_steps = self.unroll_steps
        if self.bf16 is None:
            self.bf16 = not self.fp16 and bfloat16_pays(on_gpu)
        if not torch.accelerator.is_available():
            self.use_cpu = True  # said plainly, or Transformers refuses bfloat16 and pins memory
        timed = self.max_minutes is not None
        if timed:
            self.eval_steps = self.save_steps = NEVER
        if self.num_train_epochs is None:
            self.num_train_epochs = _UNTIL_THE_TIME_IS_OVER if timed else _EPOCHS
        super().__post_init__()  # type: ignore[no-untyped-call]
        if "tensorboard" in (self.report_to or ()) and not any(
            map(find_spec, ("tensorboard", "tensorboardX"))
        ):
            raise ImportError("logging for TensorBoard needs it: pip install tensorboard")

    def _check(self) -> None:
        for name in (
            "unroll_steps",
            "acceptance_steps",
            "feature_tokens",
            "max_length",
            "evaluations",
            "regenerate_tokens",
            "regenerate_batch_size",
            "regenerate_limit",
        ):
            value = getattr(self, name)
            least = 3 if name == "max_length" else 1
            if value is not None and whole_number(value, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        if not 0 < self.step_decay <= 1:
            raise ValueError(f"step_decay must lie in (0, 1], got {self.step_decay}")
        if not 0 <= self.unroll_warmup <= 1:
            raise ValueError(f"unroll_warmup must lie in [0, 1], got {self.unroll_warmup}")
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(f"learning_rate must be more than 0, got {self.learning_rate}")
        if not 0 < self.heldout < 1:
            raise ValueError(
                f"heldout must lie in (0, 1), got {self.heldout}: the best checkpoint is chosen "
                "by conversations that are held out"
            )
        if self.gradient_checkpointing:
            raise ValueError(
                "an EAGLE-3 draft has one layer, there is nothing to checkpoint between layers; "
                "got gradient_checkpointing=True: lower per_device_train_batch_size instead"
            )
        if self.max_minutes is not None and not self.max_minutes > 0:
            raise ValueError(f"max_minutes must be more than 0, got {self.max_minutes}")
        if self.feature_dtype not in FEATURE_DTYPES:
            raise ValueError(
                f"feature_dtype must be one of {', '.join(FEATURE_DTYPES)}, got "
                f"{self.feature_dtype!r}"
            )
        if self.fp16:
            raise ValueError(
                "a draft is trained in bfloat16 or float32: its states are not normalised and "
                "may leave float16's range; use bf16=True"
            )
        if self.feature_cache is None and self.dataloader_num_workers > 0:
            raise ValueError(
                "without a feature cache the target runs in this process: set "
                "dataloader_num_workers=0, or feature_cache"
            )

    def recorded(self) -> dict[str, Any]:
        """Return what decides the result, as JSON values, for reports and fingerprints."""
        names = [
            "unroll_steps",
            "unroll_warmup",
            "step_decay",
            "acceptance_steps",
            "feature_dtype",
            "max_length",
            "heldout",
            "regenerate",
            "regenerate_tokens",
            "regenerate_limit",
            "max_minutes",
            "bf16",
            "per_device_train_batch_size",
            "gradient_accumulation_steps",
            "num_train_epochs",
            "max_steps",
            "learning_rate",
            "adam_beta1",
            "adam_beta2",
            "adam_epsilon",
            "weight_decay",
            "warmup_steps",
            "max_grad_norm",
            "seed",
            "data_seed",
            "world_size",
            "optim",
            "lr_scheduler_type",
        ]
        found = {name: getattr(self, name) for name in names}
        return {name: getattr(value, "value", value) for name, value in found.items()}


def bfloat16_pays(on_gpu: bool) -> bool:
    """Tell whether this machine multiplies bfloat16 faster than float32."""
    if on_gpu:
        # Older GPUs (T4, V100) only emulate it, and are slower with it.
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    known = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, name, bool)() for name in known)


def keep_to_one_gpu(args: DraftTrainingArguments) -> None:
    """Let one process train on one GPU, before `Trainer` multiplies its batch by those it sees."""
    number = args.n_gpu
    if number > 1:
        logger.warning(
            "this process sees %d GPUs and trains on the first: CUDA_VISIBLE_DEVICES=0 says so, "
            "for a recipe, too, which runs in one process; `vtrim train` or a script trains on "
            "all under `torchrun --nproc-per-node %d` or `accelerate launch`",
            number,
            number,
        )
        args._n_gpu = 1
