"""The clock of a training, in one process and told to several."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from training_samples import settings
from vtrim_hf.training_arguments import DraftTrainingArguments
from vtrim_hf.training_pace import NoTimeLeftError, Pace
from vtrim_hf.training_report import TrainingReport

ENDLESS = 1_000_000


def pace_of(folder: Path, report: TrainingReport | None = None, **wishes: Any) -> Pace:
    return Pace(settings(folder, **wishes), report or TrainingReport(None))


def asked_of(pace: Pace, step: int, max_steps: int = ENDLESS) -> tuple[bool, bool, bool]:
    """Take a step, and return whether it is evaluated, saved and the last."""
    pace.tick(step, max_steps)
    control = SimpleNamespace(
        should_evaluate=False, should_save=False, should_training_stop=False, should_log=False
    )
    pace.follow(SimpleNamespace(global_step=step, max_steps=max_steps), control)
    assert control.should_log == control.should_training_stop
    return control.should_evaluate, control.should_save, control.should_training_stop


@pytest.mark.parametrize(("steps", "half"), [(1, 1), (4, 2), (7, 4)])
def test_fewer_tokens_in_a_row_are_drafted_at_first(steps: int, half: int, tmp_path: Path) -> None:
    pace = pace_of(tmp_path, max_steps=10, unroll_steps=steps, unroll_warmup=0.6)
    found = []
    for step in range(10):
        pace.tick(step, 10)
        found.append(pace.unroll_steps())
    assert found == [half] * 6 + [steps] * 4


def test_in_a_timed_training_the_time_says_when_all_tokens_are_drafted(tmp_path: Path) -> None:
    report = TrainingReport(None)
    pace = pace_of(
        tmp_path, report, max_minutes=1, max_steps=-1, unroll_steps=4, unroll_warmup=0.5
    )
    for seconds, steps in ((29.0, 2), (31.0, 4)):
        report.data["seconds"]["training"] = seconds
        pace.tick(1, ENDLESS)
        assert pace.unroll_steps() == steps
        assert pace.share() == pytest.approx(seconds / 60)


def test_a_timed_training_knows_only_schedules_of_time(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="one of the schedules cosine, linear"):
        pace_of(tmp_path, max_minutes=1, lr_scheduler_type="polynomial")


@pytest.mark.parametrize("shape", ["cosine", "linear", "constant", "constant_with_warmup"])
def test_the_learning_rate_follows_the_time(shape: str, tmp_path: Path) -> None:
    report = TrainingReport(None)
    report.data["seconds"].update(features=10.0, answers=10.0)
    pace = pace_of(tmp_path, report, max_minutes=1, lr_scheduler_type=shape, max_steps=-1)
    factors = []
    for seconds in (0, 0.6, 20, 39.9, 50):
        report.data["seconds"]["training"] = float(seconds)
        pace.tick(0, ENDLESS)
        factors.append(pace.factor(0 if seconds == 0 else 1))
    start, rising, middle, end, after = factors
    if shape == "constant":
        assert factors == [1.0] * 5
        return
    assert start == pytest.approx(0.01, rel=0.02)
    assert rising == pytest.approx(0.5, rel=0.03)
    assert middle == (1.0 if shape.startswith("constant") else pytest.approx(0.5))
    assert end == after == (1.0 if shape.startswith("constant") else pytest.approx(0.02))


def test_where_epochs_are_over_before_the_time_they_end_the_training(tmp_path: Path) -> None:
    """Rate, unrolling and evaluations reach their ends, however much time is left."""
    report = TrainingReport(None)
    pace = pace_of(tmp_path, report, max_minutes=60, max_steps=-1, unroll_steps=4, evaluations=4)
    pace._args.eval_strategy = pace._args.save_strategy = "steps"
    unrolled, rates, evaluated = [], [], []
    for step in range(1, 101):
        report.data["seconds"]["training"] = float(step)  # of 3600
        if asked_of(pace, step, 100)[0]:
            evaluated.append(step)
        unrolled.append(pace.unroll_steps())
        rates.append(pace.factor(step))
    assert evaluated == [25, 50, 75, 100]
    assert unrolled == [2] * 59 + [4] * 41
    assert rates[49] == pytest.approx(0.5)
    assert rates[-1] == pytest.approx(0.02)
    report.data["seconds"]["training"] = 1800.0
    pace.tick(25, 100)
    assert pace.share() == pytest.approx(0.5), "the time, where it is further"


def test_a_timed_training_is_evaluated_now_and_then_and_ends(tmp_path: Path) -> None:
    report = TrainingReport(None)
    args = settings(
        tmp_path, max_minutes=1, evaluations=4, eval_strategy="steps", save_strategy="steps"
    )
    pace = Pace(args, report)
    asked = []
    for seconds in (5, 14, 16, 20, 44, 46, 61):
        report.data["seconds"]["training"] = float(seconds)
        asked.append(asked_of(pace, seconds))
    once, never = (True, True, False), (False, False, False)
    assert asked == [never, never, once, never, once, once, (True, True, True)]


@pytest.mark.parametrize(
    ("eval_", "save", "asked"),
    [("no", "no", (False, False)), ("steps", "no", (True, False)), ("no", "steps", (False, True))],
)
def test_what_was_switched_off_is_not_asked_for(
    eval_: str, save: str, asked: tuple[bool, bool], tmp_path: Path
) -> None:
    report = TrainingReport(None)
    pace = pace_of(
        tmp_path, report, max_minutes=1, evaluations=4, eval_strategy=eval_, save_strategy=save
    )
    report.data["seconds"]["training"] = 31.0
    assert asked_of(pace, 1) == (*asked, False)
    report.data["seconds"]["training"] = 60.0
    assert asked_of(pace, 2) == (*asked, True)


def test_a_clock_that_goes_on_repeats_no_evaluation(tmp_path: Path) -> None:
    """A checkpoint is written after an evaluation, for whose like time is kept at the end."""
    wishes: dict[str, Any] = {"eval_strategy": "steps", "save_strategy": "steps"}
    wishes |= {"max_minutes": 1, "evaluations": 4, "max_steps": -1}
    report = TrainingReport(None)
    pace = pace_of(tmp_path, report, **wishes)
    report.data["seconds"]["features"] = 10.0
    report.data["longest_evaluation"] = 10.0
    report.data["seconds"]["training"] = 20.1  # half of what is left
    assert asked_of(pace, 7) == (True, True, False)
    kept = report.state()

    again = TrainingReport(None)
    again.go_on(kept)
    later = pace_of(tmp_path, again, **wishes)
    later.go_on(SimpleNamespace(global_step=7, max_steps=ENDLESS))
    assert later.share() == pace.share() > 0.5
    assert asked_of(later, 8) == (False, False, False)
    again.data["seconds"]["training"] = 30.1
    assert asked_of(later, 9) == (True, True, False)


def test_a_training_whose_time_went_into_features_says_how_much(tmp_path: Path) -> None:
    report = TrainingReport(None)
    report.data["seconds"]["features"] = 90.0
    pace = pace_of(tmp_path, report, max_minutes=1)
    words = r"1\.5 of 1\.0 minutes .* \(max_minutes, --minutes\).* \(regenerate_limit, --limit\)"
    for refused in (pace.begin, pace.check):
        with pytest.raises(NoTimeLeftError, match=words) as found:
            refused()
        enough = pace_of(tmp_path, report, max_minutes=1 + found.value.spent)
        enough.begin()
        enough.check()
    pace_of(tmp_path, report).check()


def test_time_after_the_end_is_nobody_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    for module in ("training_pace", "training_report"):
        monkeypatch.setattr(f"vtrim_hf.{module}.time", SimpleNamespace(monotonic=lambda: now[0]))
    report = TrainingReport(None)
    pace = pace_of(tmp_path, report, max_minutes=1)
    pace.begin()
    now[0] += 5
    with pace.evaluating():
        now[0] += 3
    now[0] += 2
    pace.end()
    now[0] += 40
    pace.note(report)
    assert report.data["seconds"]["training"] == 7
    assert report.data["seconds"]["evaluation"] == 3
    assert report.data["longest_evaluation"] == 3


class Told:
    """Stands for the other processes: counts what is sent, and answers as the main one would."""

    def __init__(self, main_says: float | None = None) -> None:
        self.calls = 0
        self._main_says = main_says

    def __call__(self, tensor: Any, from_process: int = 0) -> Any:
        assert from_process == 0
        self.calls += 1
        return tensor if self._main_says is None else tensor.new_tensor(self._main_says)


def of_two(folder: Path, monkeypatch: pytest.MonkeyPatch, told: Told, **wishes: Any) -> Any:
    """Return the settings of one of two processes."""
    monkeypatch.setattr(DraftTrainingArguments, "world_size", 2)
    monkeypatch.setattr("accelerate.utils.broadcast", told)
    return settings(folder, **wishes)


def test_processes_speak_once_a_step_whoever_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, report = Told(), TrainingReport(None)
    pace = Pace(of_two(tmp_path, monkeypatch, told, max_minutes=1, evaluations=2), report)
    pace.begin()
    pace.go_on(SimpleNamespace(global_step=0, max_steps=ENDLESS))
    before = told.calls
    for step in range(1, 4):
        pace.tick(step, ENDLESS)
        for _ in range(3):  # the bar of one process asks, too
            pace.share(), pace.factor(step), pace.unroll_steps()
        pace.follow(SimpleNamespace(global_step=step, max_steps=ENDLESS), SimpleNamespace())
    assert told.calls == before + 3


def test_processes_begin_together_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = TrainingReport(None)
    late.data["seconds"]["features"] = 1e6
    Pace(of_two(tmp_path, monkeypatch, Told(main_says=1.0), max_minutes=1), late).begin()
    early = Pace(
        of_two(tmp_path, monkeypatch, Told(main_says=59.0), max_minutes=1), TrainingReport(None)
    )
    with pytest.raises(NoTimeLeftError):
        early.begin()


def test_without_a_time_processes_need_not_speak(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Told()
    pace = Pace(of_two(tmp_path, monkeypatch, told, max_steps=10), TrainingReport(None))
    pace.begin()
    pace.go_on(SimpleNamespace(global_step=0, max_steps=10))
    pace.tick(5, 10)
    assert (pace.share(), told.calls) == (0.5, 0)
