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
            "too little to train in: allow more time (max_minutes, --minutes), and what was "
            "computed is found again; or train on less, with regenerate on fewer prompts "
            "(regenerate_limit, --limit)"
        )


class Pace:
    """Counts a training's time into its report.

    Of several processes the main one's clock counts for all: it is told once a step, by `tick`,
    and whoever asks between two ticks gets what was told.

    Args:
        args: `max_minutes` makes it a timed one.
        report: holds the seconds.

    Raises:
        ValueError: if a timed training is to have a schedule that knows steps only.
    """

    def __init__(self, args: DraftTrainingArguments, report: TrainingReport) -> None:
        self._args, self._report = args, report
        self._mark: float | None = None
        self._over = 0.0
        self._due = 1
        self._shape = str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type))
        if args.max_minutes is not None and self._shape not in SHAPES:
            raise ValueError(
                f"a training of max_minutes has one of the schedules {', '.join(SHAPES)}, got "
                f"lr_scheduler_type={self._shape!r}: train for num_train_epochs instead"
            )

    def check(self) -> None:
        """Raise if answers and features took up the time, by this process's own clock.

        Raises:
            NoTimeLeftError: if so.
        """
        self._check(self._before())

    def begin(self) -> None:
        """Start the clock; on several processes all call it together.

        Raises:
            NoTimeLeftError: if answers and features took up the time.
        """
        if self._budget() is not None:
            # By one clock, or one process would give up alone and the others wait for it.
            self._check(self._from_main(self._before()))
        self._mark = time.monotonic()

    def go_on(self, state: Any) -> None:
        """Take up the training at the step that it begins with; all processes together.

        Args:
            state: Transformers' state of the trainer.
        """
        self.tick(state.global_step, state.max_steps)
        self._due = int(self._over * self._args.evaluations) + 1

    def tick(self, steps: int, max_steps: int) -> None:
        """Read the clock, once a step; on several processes all call it together.

        Args:
            steps: that are done.
            max_steps: after which the training ends, if its time is not over before.
        """
        over = steps / max(1, max_steps)
        budget = self._budget()
        if budget is not None:
            self.note(self._report)
            before = self._before()
            left = max(budget - before - self._report.data["longest_evaluation"], 1e-9)
            over = max(over, self._from_main((self._report.seconds - before) / left))
        self._over = min(1.0, max(0.0, over))

    def end(self) -> None:
        """Stop the clock."""
        self.note(self._report)
        self._mark = None

    def note(self, report: TrainingReport) -> None:
        """Add the time since the last note to the training's."""
        now = time.monotonic()
        if self._mark is not None:
            report.data["seconds"]["training"] += now - self._mark
            self._mark = now

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Count the block's time as an evaluation's, not as the training's."""
        self.end()
        start = time.monotonic()
        try:
            with self._report.timed("evaluation"):
                yield
        finally:
            took = time.monotonic() - start
            known = self._report.data["longest_evaluation"]
            self._report.data["longest_evaluation"] = max(known, took)
            self._mark = time.monotonic()

    def share(self) -> float:
        """Return how much of the training was over at the last tick, 0 to 1.

        Of its time or of its steps, whichever is further.
        """
        return self._over

    def unroll_steps(self) -> int:
        """Return how many tokens in a row the next step drafts at every column."""
        steps = int(self._args.unroll_steps or 1)
        return (steps + 1) // 2 if self._over < self._args.unroll_warmup else steps

    def follow(self, state: Any, control: Any) -> Any:
        """Ask for evaluations, and for the end, after a step."""
        evaluated = self._wanted(self._args.eval_strategy)
        saved = self._wanted(self._args.save_strategy)
        ended = state.global_step >= state.max_steps
        if self._budget() is not None:
            ended = ended or self._over >= 1.0
            if self._over * self._args.evaluations >= self._due:
                self._due = int(self._over * self._args.evaluations) + 1
                control.should_evaluate, control.should_save = evaluated, saved
        if ended:
            control.should_log = True
            control.should_evaluate, control.should_save = evaluated, saved
            control.should_training_stop = True
        return control

    def schedule(self, optimizer: Any) -> torch.optim.lr_scheduler.LRScheduler:
        """Return a schedule of the learning rate that follows the time."""
        return torch.optim.lr_scheduler.LambdaLR(optimizer, self.factor)

    def factor(self, step: int) -> float:
        """Return the learning rate now, as a share of the highest."""
        over, warm = self._over, float(self._args.warmup_steps)
        rising = (step + 1) / warm if warm >= 1 else over / max(warm, 1e-9)
        up = 1.0 if self._shape == "constant" else min(1.0, max(rising, (step + 1) / _WARM_STEPS))
        if self._shape.startswith("constant"):
            return up
        down = 1 - over if self._shape == "linear" else 0.5 * (1 + math.cos(math.pi * over))
        return up * max(_FLOOR, down)

    def _check(self, spent: float) -> None:
        budget = self._budget()
        if budget is not None and budget - spent < _LEAST_LEFT * budget:
            raise NoTimeLeftError(spent / 60, budget / 60)

    def _from_main(self, seconds: float) -> float:
        """Return what the main process knows."""
        if self._args.world_size == 1:
            return seconds
        from accelerate.utils import broadcast  # type: ignore[import-untyped]

        return float(broadcast(torch.tensor(seconds, device=self._args.device)))

    def _budget(self) -> float | None:
        return None if self._args.max_minutes is None else 60.0 * self._args.max_minutes

    def _before(self) -> float:
        seconds = self._report.data["seconds"]
        return float(seconds["answers"] + seconds["features"])

    @staticmethod
    def _wanted(strategy: Any) -> bool:
        return str(getattr(strategy, "value", strategy)) != "no"
