"""The clock of a training: what its parts took, when a timed one slows down and ends."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .training_arguments import DraftTrainingArguments
from .training_report import TrainingReport

_FLOOR = 0.02  # of the learning rate at the end of a timed training
_WARM_STEPS = 100  # at least so fast the learning rate rises, however long the training is
_LEAST_LEFT = 0.1  # of the time that must be left for training
SHAPES = ("cosine", "linear", "constant", "constant_with_warmup")


class NoTimeLeftError(ValueError):
    """Answers and features took up the time of a training; they are found again.

    Attributes:
        spent: minutes that they took.
    """

    def __init__(self, spent: float, minutes: float) -> None:
        self.spent = spent
        super().__init__(
            f"{spent:.1f} of {minutes:.1f} minutes went into answers and features, which leaves "
            "too little to train in: allow more time; what was computed is found again"
        )


class Pace:
    """Counts a training's time into its report.

    Args:
        args: `max_minutes` makes it a timed one.
        report: holds the seconds.

    Raises:
        ValueError: if a timed training is to have a schedule that knows steps only.
    """

    def __init__(self, args: DraftTrainingArguments, report: TrainingReport) -> None:
        self._args, self._report = args, report
        self._mark: float | None = None
        self._longest_evaluation = 0.0
        self._shape = str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type))
        if args.max_minutes is not None and self._shape not in SHAPES:
            raise ValueError(
                f"a training of max_minutes has one of the schedules {', '.join(SHAPES)}, got "
                f"lr_scheduler_type={self._shape!r}: train for num_train_epochs instead"
            )
        self._due = 1

    def begin(self) -> None:
        """Start the clock.

        Raises:
            NoTimeLeftError: if answers and features took up the time.
        """
        self._mark = time.monotonic()
        budget = self._budget()
        if budget is None:
            return
        if budget - self._before() < _LEAST_LEFT * budget:
            raise NoTimeLeftError(self._before() / 60, budget / 60)
        self._due = int(self.share() * self._args.evaluations) + 1

    def note(self, report: TrainingReport) -> None:
        """Add the time since the last note to the training's."""
        now = time.monotonic()
        if self._mark is not None:
            report.data["seconds"]["training"] += now - self._mark
            self._mark = now

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the block's time out of the training's."""
        self.note(self._report)
        running, self._mark = self._mark is not None, None
        start = time.monotonic()
        try:
            yield
        finally:
            took = time.monotonic() - start
            self._longest_evaluation = max(self._longest_evaluation, took)
            self._mark = time.monotonic() if running else None

    def share(self) -> float:
        """Return how much of a timed training is over, 0 to 1; the same on all processes."""
        budget = self._budget()
        if budget is None:
            return 0.0
        self.note(self._report)
        before = self._before()
        left = max(budget - before - self._longest_evaluation, 1e-9)
        share = min(1.0, max(0.0, (self._report.seconds - before) / left))
        if self._args.world_size > 1:
            from accelerate.utils import broadcast  # type: ignore[import-untyped]

            share = float(broadcast(torch.tensor(share, device=self._args.device)))
        return share

    def unroll_steps(self, state: Any) -> int:
        """Return how many tokens in a row the next step drafts at every column."""
        steps = int(self._args.unroll_steps or 1)
        over = self.share() if self._budget() else state.global_step / max(1, state.max_steps)
        return (steps + 1) // 2 if over < self._args.unroll_warmup else steps

    def follow(self, state: Any, control: Any) -> Any:
        """Ask for evaluations, and for the end, after a step."""
        ended = state.global_step >= state.max_steps
        if self._budget() is not None:
            share = self.share()
            ended = ended or share >= 1.0
            if share * self._args.evaluations >= self._due:
                self._due = int(share * self._args.evaluations) + 1
                control.should_evaluate = control.should_save = True
        if ended:
            control.should_log = True
            control.should_evaluate = self._wanted(self._args.eval_strategy)
            control.should_save = self._wanted(self._args.save_strategy)
            control.should_training_stop = True
        return control

    def schedule(self, optimizer: Any) -> torch.optim.lr_scheduler.LRScheduler:
        """Return a schedule of the learning rate that follows the time."""
        return torch.optim.lr_scheduler.LambdaLR(optimizer, self.factor)

    def factor(self, step: int) -> float:
        """Return the learning rate now, as a share of the highest."""
        share, warm = self.share(), float(self._args.warmup_steps)
        rising = (step + 1) / warm if warm >= 1 else share / max(warm, 1e-9)
        up = 1.0 if self._shape == "constant" else min(1.0, max(rising, (step + 1) / _WARM_STEPS))
        if self._shape.startswith("constant"):
            return up
        down = 1 - share if self._shape == "linear" else 0.5 * (1 + math.cos(math.pi * share))
        return up * max(_FLOOR, down)

    def _budget(self) -> float | None:
        return None if self._args.max_minutes is None else 60.0 * self._args.max_minutes

    def _before(self) -> float:
        seconds = self._report.data["seconds"]
        return float(seconds["answers"] + seconds["features"])

    @staticmethod
    def _wanted(strategy: Any) -> bool:
        return str(getattr(strategy, "value", strategy)) != "no"
