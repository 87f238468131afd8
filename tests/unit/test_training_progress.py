"""What goes along with a training: the bar, and what it says."""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest

from vtrim_hf.training_progress import TrainingBar, by_position

LOGS = {
    "loss": 2.5,
    "acceptance_length": 1.75,
    "acceptance_1": 0.5,
    "acceptance_2": 0.25,
    "masked_share": 0.01,
}


class Drawn:
    """Stands for a bar on a terminal."""

    made: list[Drawn]

    def __init__(self, **wishes: Any) -> None:
        self.wishes, self.n, self.said, self.closed = wishes, 0.0, "", False
        self.made.append(self)

    def update(self, more: float) -> None:
        self.n += more

    def set_postfix_str(self, text: str) -> None:
        self.said = text

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Drawn]:
    Drawn.made = []
    # The class of the same name hides the module from a dotted path.
    monkeypatch.setattr(import_module("huggingface_hub.utils.tqdm"), "tqdm", Drawn)
    return Drawn.made


def state_of(step: int, main: bool = True) -> Any:
    return SimpleNamespace(global_step=step, max_steps=8, is_world_process_zero=main)


def test_the_bar_shows_what_is_over_and_what_is_accepted_now(drawn: list[Drawn]) -> None:
    said: list[str] = []
    over = iter([0.25, 0.75, 1.0])
    bar = TrainingBar(lambda: next(over), said.append, shown=True)
    bar.on_train_begin(None, state_of(0), None)
    (shown,) = drawn
    assert shown.wishes["disable"] is None, "on a terminal only"
    seen = []
    for step, logs in enumerate((LOGS, {"eval_loss": 1.0}, {**LOGS, "acceptance_1": 0.75}), 1):
        bar.on_step_end(None, state_of(step), None)
        bar.on_log(None, state_of(step), None, logs=logs)
        seen.append((shown.n, shown.said))
    assert seen == [
        (25.0, "loss 2.500, acceptance 1.75 (0.50 0.25)"),
        (75.0, "loss 2.500, acceptance 1.75 (0.50 0.25)"),
        (100.0, "loss 2.500, acceptance 1.75 (0.75 0.25)"),
    ]
    metrics = {f"eval_{name}": value for name, value in LOGS.items()}
    bar.on_evaluate(None, state_of(3), None, metrics=metrics)
    assert said == ["step 3: held out acceptance length 1.750 (0.50 0.25), loss 2.500"]
    bar.on_train_end(None, state_of(3), None)
    assert shown.closed


def test_only_the_main_process_draws_asks_and_speaks(drawn: list[Drawn]) -> None:
    said: list[str] = []
    bar = TrainingBar(lambda: pytest.fail("asked"), said.append, shown=True)
    other = state_of(1, main=False)
    bar.on_train_begin(None, other, None)
    bar.on_step_end(None, other, None)
    bar.on_log(None, other, None, logs=LOGS)
    bar.on_evaluate(None, other, None, metrics={f"eval_{n}": v for n, v in LOGS.items()})
    bar.on_train_end(None, other, None)
    assert (drawn, said) == ([], [])


def test_a_quiet_bar_is_not_drawn(drawn: list[Drawn]) -> None:
    bar = TrainingBar(lambda: 0.5, None, shown=False)
    bar.on_train_begin(None, state_of(0), None)
    assert drawn[0].wishes["disable"] is True
    bar.on_evaluate(None, state_of(1), None, metrics={})


def test_acceptance_is_shown_by_position() -> None:
    logs = {f"acceptance_{n}": n / 20 for n in (2, 10, 1)} | {"acceptance_length": 2.0}
    assert by_position(logs) == "0.05 0.10 0.50"
