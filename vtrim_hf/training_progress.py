"""What goes along with a training: its order, its end in time, and a bar on standard error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback

from .training_loss import METRIC


class TrainingFlow(TrainerCallback):
    """Gives each epoch its order and each step its length, and ends a training in time.

    Args:
        trainer: the `DraftTrainer`.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        self._trainer.pace.go_on(state)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        sampler = self._trainer.train_sampler
        if sampler is not None:
            sampler.set_epoch(int(state.epoch or 0))

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        self._trainer.unroll_steps = self._trainer.pace.unroll_steps()

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        # Before the schedule's step, which asks for the time; the step is not counted yet.
        self._trainer.pace.tick(state.global_step + 1, state.max_steps)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:  # noqa: ARG002
        return self._trainer.pace.follow(state, control)


class TrainingBar(TrainerCallback):
    """Shows how far a training is, instead of Transformers' bar and lines on standard output.

    Args:
        share: gives how much of the training is over, 0 to 1. Only the main process asks, so it
            must not wait for the others.
        on_evaluation: called with a line of text after each evaluation.
        shown: whether a bar is drawn on a terminal.
    """

    def __init__(
        self,
        share: Callable[[], float],
        on_evaluation: Callable[[str], None] | None,
        shown: bool,
    ) -> None:
        self._share, self._say, self._shown = share, on_evaluation, shown
        self._bar: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        from huggingface_hub.utils.tqdm import tqdm

        if state.is_world_process_zero:
            self._bar = tqdm(  # type: ignore[no-untyped-call]
                total=100,
                desc="training",
                unit="%",
                bar_format="{desc}: {percentage:3.0f}%|{bar}| [{elapsed}<{remaining}{postfix}]",
                disable=None if self._shown else True,
            )

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        if self._bar is not None:
            self._bar.update(100 * self._share() - self._bar.n)

    def on_log(
        self,
        args: Any,  # noqa: ARG002
        state: Any,  # noqa: ARG002
        control: Any,  # noqa: ARG002
        logs: Any = None,
        **_: Any,
    ) -> None:
        if self._bar is not None and "loss" in (logs or {}):
            length = f"{logs[METRIC]:.2f} ({by_position(logs)})"
            self._bar.set_postfix_str(f"loss {logs['loss']:.3f}, acceptance {length}")

    def on_evaluate(
        self,
        args: Any,  # noqa: ARG002
        state: Any,
        control: Any,  # noqa: ARG002
        metrics: Any = None,
        **_: Any,
    ) -> None:
        if self._say is not None and state.is_world_process_zero:
            found = {name.removeprefix("eval_"): value for name, value in metrics.items()}
            self._say(
                f"step {state.global_step}: held out acceptance length {found[METRIC]:.3f} "
                f"({by_position(found)}), loss {found['loss']:.3f}"
            )

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        if self._bar is not None:
            self._bar.close()


def by_position(figures: dict[str, float]) -> str:
    """Return the acceptance by position of logs or metrics as text."""
    positions = sorted(
        int(name.rpartition("_")[2])
        for name in figures
        if name.startswith("acceptance_") and name.rpartition("_")[2].isdigit()
    )
    return " ".join(f"{figures[f'acceptance_{position}']:.2f}" for position in positions)
