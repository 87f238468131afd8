"""How many tokens a round may have: fixed, heuristic, and chosen by what pays."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import GenerationConfig

from drafting import make_draft, watch
from tiny_models import VOCAB_SIZE, make_prompt, make_tiny, perturbed
from vtrim_hf.draft_length import (
    ADAPTIVE_REACH,
    SCHEDULES,
    AdaptiveLength,
    DraftLength,
    HeuristicLength,
    draft_length,
)


def settings(length: Any = 4, schedule: Any = "constant") -> GenerationConfig:
    return GenerationConfig(num_assistant_tokens=length, num_assistant_tokens_schedule=schedule)


@pytest.mark.parametrize(
    ("schedule", "sampling", "kind"),
    [
        (None, False, DraftLength),
        ("constant", False, DraftLength),
        ("heuristic", False, HeuristicLength),
        ("heuristic_transient", True, HeuristicLength),
        ("adaptive", False, AdaptiveLength),
        ("adaptive", True, DraftLength),
    ],
)
def test_schedules(schedule: str | None, sampling: bool, kind: type) -> None:
    made = draft_length(settings(5, schedule), sampling=sampling)
    assert type(made) is kind
    assert made.current == 5


def test_every_schedule_is_tried() -> None:
    assert {type(draft_length(settings(2, name), sampling=False)) for name in SCHEDULES} == {
        DraftLength,
        HeuristicLength,
        AdaptiveLength,
    }


@pytest.mark.parametrize("schedule", [*SCHEDULES, None])
@pytest.mark.parametrize("length", [None, 0])
def test_no_tokens(length: int | None, schedule: str | None) -> None:
    made = draft_length(settings(length, schedule), sampling=False)
    for _ in range(4):
        made.asked()
        assert made.current == 0
        made.handed_over(0, 0)
        made.checked(0)


@pytest.mark.parametrize("length", [-1, 2.5, "4", float("inf"), float("nan"), [4]], ids=repr)
def test_lengths_that_mean_nothing(length: Any) -> None:
    with pytest.raises(ValueError, match=r"num_assistant_tokens must be a whole number.*got"):
        draft_length(settings(length), sampling=False)


def test_unknown_schedule() -> None:
    with pytest.raises(ValueError, match=r"schedule must be one of constant,.*got 'dynamic'"):
        draft_length(settings(4, "dynamic"), sampling=False)


class World:
    """A draft and a target that take the time one says.

    Attributes:
        now: seconds.
        widths: what each round was allowed.
    """

    def __init__(
        self,
        length: int = 4,
        *,
        step: float = 0.01,
        alone: float = 1.0,
        longer: float = 0.0,
        prompt: float = 1.0,
    ) -> None:
        self.now = 0.0
        self.widths: list[int] = []
        self.schedule = AdaptiveLength(length, lambda: self.now)
        self._step, self._alone, self._longer, self._prompt = step, alone, longer, prompt

    def play(
        self, rounds: int, accepts: Callable[[int], bool], *, stops: int | None = None
    ) -> int:
        """Draft and verify; return what the last round was allowed.

        Args:
            rounds: how many.
            accepts: whether the target takes the token at a position, from 0 on, those before
                being taken.
            stops: tokens after which the draft itself gives up.
        """
        for _ in range(rounds):
            slow = self._prompt if not self.widths else 1.0
            self.schedule.asked()
            allowed = self.schedule.current
            self.widths.append(allowed)
            drafted = min(allowed, stops or allowed)
            self.now += slow * self._step
            self.schedule.first_chosen()
            self.now += (drafted - 1) * self._step
            self.schedule.handed_over(allowed, drafted)
            self.now += slow * (self._alone + self._longer * drafted)
            accepted = 0
            while accepted < drafted and accepts(accepted):
                accepted += 1
            self.schedule.checked(accepted)
        return self.widths[-1]


def test_everything_accepted_and_drafting_cheap() -> None:
    world = World(4)
    assert world.play(60, lambda _: True) == ADAPTIVE_REACH * 4
    assert world.widths[:2] == [4, 4]  # nothing to go by yet
    assert world.widths == sorted(world.widths)


@pytest.mark.parametrize("step", [0.05, 0.3])
def test_nothing_accepted(step: float) -> None:
    world = World(4, step=step)
    assert world.play(60, lambda _: False) == 1
    assert world.widths == sorted(world.widths, reverse=True)
    assert min(world.widths) == 1


def test_drafting_dearer_than_the_target() -> None:
    assert World(4, step=2.0).play(60, lambda _: True) == 1


def test_never_more_than_what_is_accepted() -> None:
    assert World(4, step=0.1).play(200, lambda position: position < 3) == 3


def test_it_comes_back() -> None:
    world = World(4, step=0.1)
    assert world.play(60, lambda _: False) == 1
    assert world.play(100, lambda _: True) == 12


def test_verification_that_grows_with_the_draft() -> None:
    def width(longer: float) -> int:
        chance = random.Random(0)
        return World(4, step=0.02, longer=longer).play(300, lambda _: chance.random() < 0.7)

    assert width(0.0) > width(0.3) >= 1


@pytest.mark.parametrize("accepting", [0.5, 0.8, 0.9])
@pytest.mark.parametrize(("step", "longer"), [(0.02, 0.0), (0.05, 0.05), (0.2, 0.0), (0.5, 0.05)])
def test_choice_is_close_to_the_best(step: float, longer: float, accepting: float) -> None:
    def pace(length: int) -> float:
        tokens = sum(accepting**i for i in range(length + 1))
        return tokens / (1.0 + (step + longer) * length)

    chance = random.Random(1)
    world = World(4, step=step, longer=longer)
    world.play(400, lambda _: chance.random() < accepting)
    reached = sum(map(pace, world.widths[100:])) / 300
    assert reached > 0.95 * max(map(pace, range(1, 13)))
    # Standing still would not do.
    worst = min(map(pace, range(1, 13)))
    assert worst < 0.92 * max(map(pace, range(1, 13)))


def test_prompts_are_no_measure() -> None:
    """Reading the prompt takes both models a thousand times as long, and changes nothing."""
    short, long = World(4, step=0.1), World(4, step=0.1, prompt=1000.0)
    for world in (short, long):
        world.play(40, lambda position: position < 2)
    assert short.widths == long.widths
    assert len(set(short.widths)) > 1


def test_one_pause_changes_little() -> None:
    world = World(4, step=0.1)
    before = world.play(100, lambda position: position < 3)
    world._prompt, world.widths[:] = 1000.0, []  # the next round is slow
    world.play(60, lambda position: position < 3)
    assert max(world.widths) - before <= 2
    assert world.widths[-1] == before


def test_a_draft_that_gives_up_itself() -> None:
    """Rounds that end before they must tell how far drafts get, not that more would be refused."""
    world = World(4)
    assert world.play(60, lambda _: True, stops=2) >= 2


def test_a_clock_that_stands_still() -> None:
    schedule = AdaptiveLength(4, lambda: 0.0)
    for _ in range(5):
        schedule.asked()
        assert schedule.current == 4
        schedule.first_chosen()
        schedule.handed_over(4, 4)
        schedule.checked(4)


def test_rounds_without_a_draft() -> None:
    """A draft that has nothing to say yet has not been refused."""
    world = World(4, step=0.1)
    for _ in range(50):
        world.schedule.asked()
        world.schedule.handed_over(4, 0)
        world.now += 1.0
        world.schedule.checked(0)
    fresh = AdaptiveLength(4)
    assert world.schedule._accepting.values() == fresh._accepting.values()
    assert world.schedule._drafting.values() == fresh._drafting.values()
    assert world.play(30, lambda _: True) == 12


# In `generate`.


def adaptive(draft: Any) -> Any:
    draft.generation_config.num_assistant_tokens_schedule = "adaptive"
    return draft


@pytest.mark.parametrize("scale", [0.0, 0.05, 5.0], ids=["same", "often right", "always wrong"])
def test_text_is_the_targets(scale: float) -> None:
    target = make_tiny("llama")
    draft = adaptive(make_draft(perturbed(target, scale), range(0, VOCAB_SIZE, 2), length=3))
    prompt = make_prompt()
    before = draft.generation_config.to_dict()
    plain = target.generate(prompt, max_new_tokens=60)
    firsts = []
    for _ in range(2):
        run = watch(target, draft, prompt, max_new_tokens=60)
        assert torch.equal(run.sequences, plain)
        lengths = [len(proposal) for proposal in run.proposals]
        assert max(lengths) <= ADAPTIVE_REACH * 3
        assert min(lengths[:-1]) >= 1
        firsts.append(lengths[:2])
        assert isinstance(run.generators[0].length, AdaptiveLength)
    assert firsts == [[3, 3], [3, 3]]  # nothing is carried from call to call
    assert draft.generation_config.to_dict() == before


def test_seeds_are_reproducible() -> None:
    target = make_tiny("llama")
    draft = make_draft(perturbed(target), range(0, VOCAB_SIZE, 2), length=3)
    draft.generation_config.assistant_confidence_threshold = 0.2
    runs = []
    for schedule in ("constant", "adaptive", "adaptive"):
        draft.generation_config.num_assistant_tokens_schedule = schedule
        torch.manual_seed(7)
        run = watch(target, draft, make_prompt(), max_new_tokens=60, do_sample=True)
        runs.append((run.new_ids, run.proposals))
    assert runs[0] == runs[1] == runs[2]
    assert len({len(proposal) for proposal in runs[0][1]}) > 1


def test_settings_are_checked_before_the_first_token() -> None:
    target = make_tiny("llama")
    draft = make_draft(target)
    draft.generation_config.num_assistant_tokens_schedule = "sometimes"
    with pytest.raises(ValueError, match="got 'sometimes'"):
        target.generate(make_prompt(), assistant_model=draft, max_new_tokens=2)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedule_is_saved(schedule: str, tmp_path: Any) -> None:
    settings(3, schedule).save_pretrained(tmp_path)
    loaded = GenerationConfig.from_pretrained(tmp_path)
    loaded.validate(strict=True)
    assert loaded.num_assistant_tokens_schedule == schedule
