"""Drafting by itself: choosing in draft space, the loop with a scripted body, the hook."""

from __future__ import annotations

import inspect
import sys
import time
from importlib import util
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    ForcedEOSTokenLogitsProcessor,
    GenerationConfig,
    GenerationMixin,
    InfNanRemoveLogitsProcessor,
    LogitNormalization,
    LogitsProcessorList,
    MinLengthLogitsProcessor,
    MinPLogitsWarper,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopHLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)
from transformers.generation.candidate_generator import (
    AssistedCandidateGenerator,
    CandidateGenerator,
    PromptLookupCandidateGenerator,
)

from drafting import make_draft, watch
from tiny_models import VOCAB_SIZE, make_prompt, make_tiny, perturbed
from vtrim_hf import assisted_generation, draft_space
from vtrim_hf.assisted_generation import (
    HOOKED,
    DraftSpaceProcessors,
    TrimmedCandidateGenerator,
    choose_rows,
    install_hook,
    restore_hook,
    widen,
)

V = 40
KEPT = torch.tensor([0, 3, 5, 8, 11, 13, 21, 34])
IDS = torch.tensor([[5, 7, 8, 8, 39]])

ID_FREE: dict[str, list[Any]] = {
    "TemperatureLogitsWarper": [TemperatureLogitsWarper(0.7), TemperatureLogitsWarper(3.0)],
    "TopKLogitsWarper": [TopKLogitsWarper(1), TopKLogitsWarper(3), TopKLogitsWarper(30)],
    "TopPLogitsWarper": [TopPLogitsWarper(0.5), TopPLogitsWarper(0.95, min_tokens_to_keep=2)],
    "TopHLogitsWarper": [TopHLogitsWarper(0.3), TopHLogitsWarper(0.8)],
    "MinPLogitsWarper": [MinPLogitsWarper(0.1), MinPLogitsWarper(0.6)],
    "TypicalLogitsWarper": [TypicalLogitsWarper(0.5), TypicalLogitsWarper(0.9)],
    "EpsilonLogitsWarper": [EpsilonLogitsWarper(0.05), EpsilonLogitsWarper(0.3)],
    "EtaLogitsWarper": [EtaLogitsWarper(0.05), EtaLogitsWarper(0.4)],
    "InfNanRemoveLogitsProcessor": [InfNanRemoveLogitsProcessor()],
    "LogitNormalization": [LogitNormalization()],
}


def random_scores(seed: int, rows: int = 4) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, len(KEPT), generator=generator) * (1 + seed % 5)


def in_draft_space(*processors: Any, kept: torch.Tensor | None = KEPT) -> DraftSpaceProcessors:
    return DraftSpaceProcessors(LogitsProcessorList(processors), kept, V)


def at_full_width(processors: Any, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """The same scores the way Transformers would process them."""
    chain: Any = LogitsProcessorList(processors)
    wide = chain(ids, widen(scores, KEPT, V))
    assert isinstance(wide, torch.Tensor)
    return wide


def test_every_id_free_processor_is_tried() -> None:
    assert set(ID_FREE) == draft_space._ID_FREE


@pytest.mark.parametrize("name", ID_FREE)
def test_warpers_give_the_same_law_in_draft_space_as_at_the_target_width(name: str) -> None:
    changed = False
    for processor in ID_FREE[name]:
        for seed in range(25):
            scores = random_scores(seed)
            if seed % 3 == 0:  # some that an earlier processor has forbidden
                scores[:, seed % len(KEPT)] = -torch.inf
            ids = IDS.expand(len(scores), -1)
            ours = in_draft_space(processor)(ids, scores.clone())
            theirs = at_full_width([processor], ids, scores)
            assert ours is not None
            assert ours.shape == scores.shape
            torch.testing.assert_close(ours.softmax(-1), theirs.softmax(-1)[:, KEPT])
            changed |= not torch.equal(ours, scores)
    assert changed  # the comparison was not between two no-ops


@pytest.mark.parametrize("ignored", [None, 2, torch.tensor([3])], ids=["all", "int", "tensor"])
@pytest.mark.parametrize("penalty", [1.7, 0.5])
def test_repetition_penalty_in_draft_space(ignored: Any, penalty: float) -> None:
    processor = RepetitionPenaltyLogitsProcessor(penalty, prompt_ignore_length=ignored)
    scores = random_scores(1, rows=1)
    ours = in_draft_space(processor)(IDS, scores)
    assert ours is not None
    torch.testing.assert_close(ours, at_full_width([processor], IDS, scores)[:, KEPT])
    said = {8} if ignored is not None else {5, 8}
    changed = KEPT[(ours != scores)[0]].tolist()
    assert set(changed) == said


@pytest.mark.parametrize(
    "chain",
    [
        pytest.param([SequenceBiasLogitsProcessor([[[8], 4.0], [[9], 9.0]])], id="bias"),
        pytest.param(
            [SequenceBiasLogitsProcessor([[[8], 4.0]]), TopKLogitsWarper(2)], id="bias, top-k"
        ),
        pytest.param(
            [
                RepetitionPenaltyLogitsProcessor(1.5),
                NoRepeatNGramLogitsProcessor(1),
                TemperatureLogitsWarper(0.5),
                TopPLogitsWarper(0.8),
            ],
            id="penalty, n-gram, temperature, top-p",
        ),
        pytest.param(
            [MinLengthLogitsProcessor(9, 3), RepetitionPenaltyLogitsProcessor(1.5)],
            id="penalty after the scores were spread",
        ),
    ],
)
def test_processors_that_look_at_ids(chain: list[Any]) -> None:
    scores = random_scores(2, rows=1)
    ours = in_draft_space(*chain)(IDS, scores.clone())
    assert ours is not None
    torch.testing.assert_close(ours, at_full_width(chain, IDS, scores)[:, KEPT])
    assert not torch.equal(ours, scores)


def test_without_a_table_processors_run_as_they_are() -> None:
    scores = torch.randn(1, V)
    chain: Any = LogitsProcessorList([RepetitionPenaltyLogitsProcessor(1.5), TopKLogitsWarper(5)])
    ours = in_draft_space(*chain, kept=None)(IDS, scores)
    assert ours is not None
    assert torch.equal(ours, chain(IDS, scores))


@pytest.mark.parametrize(
    "after",
    [
        [],
        [LogitNormalization()],
        [EtaLogitsWarper(0.1)],
        [TopHLogitsWarper(0.5)],
        [TypicalLogitsWarper(0.5), TopPLogitsWarper(0.5)],
        [RepetitionPenaltyLogitsProcessor(1.2)],
    ],
    ids=lambda after: ", ".join(type(p).__name__ for p in after) or "nothing",
)
def test_nothing_left_to_say(after: list[Any]) -> None:
    """All kept ids forbidden: no scores, whatever would follow (some of it raises on -inf
    alone)."""
    forbid = SuppressTokensLogitsProcessor(KEPT.tolist())
    assert in_draft_space(forbid, *after)(IDS, random_scores(0, rows=1)) is None
    # One id left is one to choose.
    forbid = SuppressTokensLogitsProcessor(KEPT[1:].tolist())
    left = in_draft_space(forbid, *after)(IDS, random_scores(0, rows=1))
    assert left is not None
    assert choose_rows(left, sample=False).item() == 0


def test_only_an_id_outside_the_vocabulary_is_left() -> None:
    """A forced id that the draft cannot say is finite at the target's width, yet no choice
    here."""
    forced = ForcedEOSTokenLogitsProcessor(IDS.shape[1] + 1, 39)
    assert in_draft_space(forced)(IDS, random_scores(0, rows=1)) is None
    assert in_draft_space(forced, TopKLogitsWarper(2))(IDS, random_scores(0, rows=1)) is None


def test_processor_that_cannot_cope_with_forbidden_ids() -> None:
    def standardise(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return (scores - scores.mean()) / scores.std()

    assert bool(at_full_width([standardise], IDS, random_scores(0, rows=1)).isnan().any())
    assert in_draft_space(standardise)(IDS, random_scores(0, rows=1)) is None


def test_foreign_processor_of_a_known_name_is_not_taken_for_id_free() -> None:
    class TopKLogitsWarper:
        def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            assert scores.shape[-1] == V
            scores = scores.clone()
            scores[:, 5] = 99.0
            return scores

    ours = in_draft_space(TopKLogitsWarper())(IDS, random_scores(0, rows=1))
    assert ours is not None
    assert KEPT[choose_rows(ours, sample=False)].item() == 5


def test_widen_and_choose() -> None:
    scores = torch.randn(2, 3, len(KEPT))
    wide = widen(scores, KEPT, V)
    assert wide.shape == (2, 3, V)
    assert torch.equal(wide[..., KEPT], scores)
    assert int(wide.isneginf().sum()) == 2 * 3 * (V - len(KEPT))
    assert widen(scores, None, V) is scores
    forbidden = torch.tensor([[-torch.inf, 2.0, -torch.inf]])
    assert choose_rows(forbidden, sample=False).tolist() == [[1]]
    assert {choose_rows(forbidden, sample=True).item() for _ in range(20)} == {1}
    assert {choose_rows(torch.zeros(1, 3), sample=True).item() for _ in range(60)} == {0, 1, 2}
    assert {choose_rows(torch.zeros(1, 3), sample=False).item() for _ in range(9)} == {0}


class ScriptedSession:
    """A body that says what the script says; `sure` is the probability of each word."""

    requires_model_outputs = False

    def __init__(self, rows: list[int], sure: float = 0.99) -> None:
        self._rows = iter(rows)
        self._sure = sure
        self.caught_up: list[list[int]] = []
        self.inputs: list[dict[str, Any]] = []
        self.steps: list[int] = []

    def catch_up(self, input_ids: torch.Tensor, **inputs: Any) -> torch.Tensor:
        self.caught_up.append(input_ids[0].tolist())
        self.inputs.append(inputs)
        return self._logits()

    def step(self, token: torch.Tensor) -> torch.Tensor:
        assert token.shape == (1, 1)
        self.steps.append(int(token))
        return self._logits()

    def _logits(self) -> torch.Tensor:
        others = (1 - self._sure) / (len(KEPT) - 1)
        law = torch.full((1, len(KEPT)), others)
        law[0, next(self._rows)] = self._sure
        return law.log()


def make_generator(
    session: Any,
    *,
    length: int | None = 4,
    threshold: float | None = 0.0,
    schedule: str = "constant",
    greedy_draft: bool = False,
    processors: Any = (),
    stop_strings: Any = None,
    calibration: Any = None,
    clock: Any = time.perf_counter,
    **settings: Any,
) -> TrimmedCandidateGenerator:
    return TrimmedCandidateGenerator(
        session,
        kept_ids=KEPT,
        vocab_size=V,
        draft_settings=GenerationConfig(
            num_assistant_tokens=length,
            num_assistant_tokens_schedule=schedule,
            assistant_confidence_threshold=threshold,
            assistant_confidence_calibration=calibration,
            **({"do_sample": False} if greedy_draft else {}),
        ),
        settings=GenerationConfig(max_length=100, **settings),
        logits_processor=LogitsProcessorList(processors),
        device=torch.device("cpu"),
        stop_strings=stop_strings,
        clock=clock,
    )


def propose(generator: TrimmedCandidateGenerator, ids: torch.Tensor = IDS) -> list[int]:
    longer, _ = generator.get_candidates(ids)
    assert torch.equal(longer[:, : ids.shape[1]], ids)
    said: list[int] = longer[0, ids.shape[1] :].tolist()
    return said


def test_proposals_are_target_ids_and_the_body_reads_target_ids() -> None:
    session = ScriptedSession([2, 4, 7, 0])
    assert propose(make_generator(session)) == [5, 11, 34, 0]
    assert session.caught_up == [IDS[0].tolist()]
    assert session.steps == [5, 11, 34]  # the last one is the target's to read


@pytest.mark.parametrize(
    ("room", "count"), [(0, 0), (1, 0), (2, 1), (3, 2), (5, 4), (6, 4)], ids=str
)
def test_proposals_leave_room_for_the_targets_own_token(room: int, count: int) -> None:
    session = ScriptedSession([1] * 4)
    generator = make_generator(session)
    generator._max_length = IDS.shape[1] + room
    assert len(propose(generator)) == count
    assert bool(session.caught_up) == bool(count)


@pytest.mark.parametrize("length", [0, None])
def test_no_assistant_tokens_means_no_draft(length: int | None) -> None:
    session = ScriptedSession([])
    assert make_generator(session, length=length).get_candidates(IDS) == (IDS, None)


@pytest.mark.parametrize("eos", [11, [39, 11], [11]], ids=str)
def test_drafting_ends_with_an_eos(eos: int | list[int]) -> None:
    session = ScriptedSession([2, 4, 7, 0])
    assert propose(make_generator(session, eos_token_id=eos)) == [5, 11]


def test_an_id_of_zero_can_be_the_eos() -> None:
    assert propose(make_generator(ScriptedSession([2, 0, 7, 1]), eos_token_id=0)) == [5, 0]


@pytest.mark.parametrize(
    ("threshold", "count"),
    [(None, 4), (0.0, 4), (0.23, 4), (0.35, 3), (0.48, 3), (0.5, 2), (0.71, 1)],
    ids=str,
)
@pytest.mark.parametrize("sampling", [False, True], ids=["greedy", "sampling"])
def test_unsure_guess_stays_and_ends_the_draft(
    threshold: float | None, count: int, sampling: bool
) -> None:
    session = ScriptedSession([1, 2, 3, 4], sure=0.7)
    generator = make_generator(session, threshold=threshold, do_sample=sampling, greedy_draft=True)
    assert len(propose(generator)) == count
    assert len(session.steps) == count - 1  # what ends a draft is not read any more


def test_every_draft_begins_sure() -> None:
    generator = make_generator(ScriptedSession([1] * 9, sure=0.7), threshold=0.4)
    assert [len(propose(generator)) for _ in range(3)] == [3, 3, 3]


@pytest.mark.parametrize(
    ("calibration", "count"), [(None, 3), ([1.0, 1.0], 7), ([0.5, -1.0], 1), ([0.0, 3.0], 9)]
)
def test_calibration_decides_with_the_threshold(calibration: Any, count: int) -> None:
    """sigmoid(logit(.7) + 1) is .86, sigmoid(.5 logit(.7) - 1) is .36, sigmoid(3) is .95."""
    generator = make_generator(
        ScriptedSession([1] * 9, sure=0.7), length=9, threshold=0.4, calibration=calibration
    )
    assert len(propose(generator)) == count


def test_what_was_drawn_counts_not_what_is_likely() -> None:
    """A sampling draft that drew a rare token is in doubt, however sure it was of another."""
    torch.manual_seed(0)
    lengths = []
    for _ in range(60):
        generator = make_generator(
            ScriptedSession([1] * 2, sure=0.9), length=2, threshold=0.5, do_sample=True
        )
        said = propose(generator)
        assert (len(said) == 1) is (said[0] != int(KEPT[1]))
        lengths.append(len(said))
    assert set(lengths) == {1, 2}


def test_time_is_asked_for_by_the_adaptive_schedule_only() -> None:
    def asked(schedule: str, **settings: Any) -> int:
        calls = 0

        def clock() -> float:
            nonlocal calls
            calls += 1
            return float(calls)

        generator = make_generator(
            ScriptedSession([1] * 99), schedule=schedule, clock=clock, **settings
        )
        for _ in range(3):
            said = propose(generator)
            generator.update_candidate_strategy(IDS, torch.zeros(1, 1, V), len(said))
        return calls

    assert asked("constant") == asked("heuristic") == asked("adaptive", do_sample=True) == 0
    assert asked("adaptive") == 9


def test_adaptive_length_with_a_clock() -> None:
    """One second a call of the clock: drafting costs as much as verifying, nothing is taken."""
    seconds = iter(range(1000))
    generator = make_generator(
        ScriptedSession([1] * 500), schedule="adaptive", clock=lambda: float(next(seconds))
    )
    lengths = []
    for _ in range(20):
        lengths.append(len(propose(generator)))
        generator.update_candidate_strategy(IDS, torch.zeros(1, 1, V), 0)
    assert lengths[0] == 4
    assert lengths[-1] == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_the_largest_is_found_as_torch_finds_it(dtype: torch.dtype) -> None:
    """Also among equals, which half precision makes often: the first one."""
    generator = torch.Generator().manual_seed(0)
    session = ScriptedSession([])
    for _ in range(50):
        logits = (torch.randn(1, len(KEPT), generator=generator) * 4).round().to(dtype)
        session._logits = lambda logits=logits: logits  # type: ignore[misc]
        said = propose(make_generator(session, length=1))
        assert said == KEPT[logits.float().argmax(dim=-1)].tolist()


def test_scores_handed_over_are_those_that_were_drawn_from() -> None:
    generator = make_generator(
        ScriptedSession([2, 4, 7, 0], sure=0.5),
        do_sample=True,
        processors=[TemperatureLogitsWarper(0.5), TopKLogitsWarper(3)],
    )
    ids, scores = generator.get_candidates(IDS)
    assert scores is not None
    assert scores.shape == (1, 4, V)
    assert scores.dtype == torch.float32
    law = scores.softmax(-1)
    drawn = ids[0, IDS.shape[1] :]
    assert bool((law[0, torch.arange(4), drawn] > 0).all())
    outside = torch.ones(V, dtype=torch.bool)
    outside[KEPT] = False
    assert float(law[..., outside].sum()) == 0.0
    # Temperature .5 squares: .25 against 7 times (.5/7)^2, and equal scores survive top-k
    # together.
    assert law[0, 0, 5].item() == pytest.approx(0.25 / (0.25 + 7 * (0.5 / 7) ** 2), abs=1e-5)


def test_greedy_draft_of_a_sampling_target_reports_certainty() -> None:
    ids, scores = make_generator(
        ScriptedSession([2, 4, 7, 0], sure=0.5), do_sample=True, greedy_draft=True
    ).get_candidates(IDS)
    assert ids[0, IDS.shape[1] :].tolist() == [5, 11, 34, 0]
    assert scores is not None
    expected = torch.nn.functional.one_hot(ids[:, IDS.shape[1] :], V).float()
    assert torch.equal(scores.softmax(-1), expected)


def test_stop_strings_make_the_draft_greedy() -> None:
    """A guess that ends the text is dropped; one that was drawn must never be."""
    ids, scores = make_generator(
        ScriptedSession([2, 4, 7, 0], sure=0.3),
        do_sample=True,
        stop_strings=lambda ids, _: torch.tensor([int(ids[0, -1]) == 34]),
    ).get_candidates(IDS)
    assert ids[0, IDS.shape[1] :].tolist() == [5, 11]
    assert scores is not None
    assert torch.equal(scores.softmax(-1), torch.nn.functional.one_hot(ids[:, -2:], V).float())


def test_greedy_target_gets_no_scores() -> None:
    assert make_generator(ScriptedSession([1, 2, 3, 4])).get_candidates(IDS)[1] is None


@pytest.mark.parametrize(
    ("schedule", "after"),
    [("constant", [4, 4]), ("heuristic", [6, 5]), ("heuristic_transient", [6, 5])],
)
def test_schedule_within_a_run(schedule: str, after: list[int]) -> None:
    generator = make_generator(ScriptedSession([1] * 40), schedule=schedule)
    lengths = []
    for lost in (0, 1):
        said = propose(generator)
        scores = torch.zeros(1, len(said) + 1, V)
        generator.update_candidate_strategy(IDS, scores, len(said) - lost)
        lengths.append(generator.length.current)
    assert lengths == after


def test_a_round_without_proposals_says_nothing_about_the_length() -> None:
    generator = make_generator(
        ScriptedSession([1] * 9),
        schedule="heuristic",
        processors=[SuppressTokensLogitsProcessor(KEPT.tolist())],
    )
    assert propose(generator) == []
    generator.update_candidate_strategy(IDS, torch.zeros(1, 1, V), 0)
    assert generator.length.current == 4


def test_heuristic_length_never_falls_below_one() -> None:
    generator = make_generator(ScriptedSession([1] * 40), schedule="heuristic", length=2)
    for _ in range(5):
        said = propose(generator)
        generator.update_candidate_strategy(IDS, torch.zeros(1, len(said) + 1, V), 0)
    assert generator.length.current == 1


class Sizes(TorchDispatchMode):
    """Records the shape of every tensor that is computed, views of parameters left out."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self._weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
        self.shapes: list[tuple[str, torch.Size]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        outputs = result if isinstance(result, tuple | list) else (result,)
        for output in outputs:
            if (
                isinstance(output, torch.Tensor)
                and output.untyped_storage().data_ptr() not in self._weights
            ):
                self.shapes.append((str(func), output.shape))
        return result


def drafted_shapes(draft: Any, prompt: torch.Tensor, **settings: Any) -> list[Any]:
    target = SimpleNamespace(config=draft.config, generation_config=GenerationConfig())
    generator = draft.make_candidate_generator(
        target=target,
        generation_config=GenerationConfig(max_length=200, **settings),
        input_ids=prompt,
        logits_processor=target_processors(settings),
        model_kwargs={},
    )
    with Sizes(draft) as sizes, torch.no_grad():
        ids, _ = generator.get_candidates(prompt)
    assert ids.shape[1] == prompt.shape[1] + 50
    return sizes.shapes


def target_processors(settings: dict[str, Any]) -> LogitsProcessorList:
    if not settings.get("do_sample"):
        return LogitsProcessorList([RepetitionPenaltyLogitsProcessor(1.1)])
    return LogitsProcessorList(
        [
            RepetitionPenaltyLogitsProcessor(1.1),
            TemperatureLogitsWarper(0.7),
            TopPLogitsWarper(0.9),
        ]
    )


@pytest.mark.parametrize("sampling", [False, True], ids=["greedy", "sampling"])
def test_no_tensor_of_the_targets_width_but_once_a_round(sampling: bool) -> None:
    draft = make_draft(make_tiny("llama"), range(100, 177), length=50)
    shapes = drafted_shapes(draft, make_prompt(5), do_sample=sampling)
    wide = [shape for _, shape in shapes if VOCAB_SIZE in shape]
    assert any(77 in shape for _, shape in shapes)  # draft-wide tensors were seen
    # The tensor itself and, where scores are scattered into it, what the in-place op returns.
    assert {tuple(shape) for shape in wide} == ({(1, 50, VOCAB_SIZE)} if sampling else set())
    assert len(wide) <= (3 if sampling else 0)


def test_the_head_is_never_gathered(  # sglang#3822
) -> None:
    draft = make_draft(make_tiny("llama"), range(0, 200, 2), length=50)
    head = draft.lm_head.weight
    assert head.is_contiguous()
    assert head.shape == (100, 48)
    shapes = drafted_shapes(draft, make_prompt(5))
    assert len(shapes) > 1000
    assert [entry for entry in shapes if entry[1].numel() >= head.numel()] == []


def test_generate_of_the_draft_is_never_called(monkeypatch: pytest.MonkeyPatch) -> None:
    target = make_tiny("llama")
    draft = make_draft(perturbed(target), range(0, VOCAB_SIZE, 2))

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("the drafting loop called generate")

    monkeypatch.setattr(type(draft), "generate", refuse)
    assert watch(target, draft, make_prompt(), max_new_tokens=8).proposed > 0


# The hook.


@pytest.fixture
def pristine_hook() -> Any:
    """Put the hook back as it was found, whatever the test does."""
    before = getattr(GenerationMixin, HOOKED)
    yield
    setattr(GenerationMixin, HOOKED, before)


def chosen(target: Any, **call: Any) -> CandidateGenerator:
    """Ask Transformers for the candidate generator of a call."""
    config = GenerationConfig(max_length=20, **call.pop("config", {}))
    config._eos_token_tensor = None
    generator = getattr(target, HOOKED)(
        generation_config=config,
        input_ids=make_prompt(4),
        inputs_tensor=make_prompt(4),
        logits_processor=LogitsProcessorList(),
        model_kwargs={},
        **call,
    )
    assert isinstance(generator, CandidateGenerator)
    return generator


def test_hook_is_idempotent_and_restorable(pristine_hook: Any) -> None:
    hooked = getattr(GenerationMixin, HOOKED)
    install_hook()
    assert getattr(GenerationMixin, HOOKED) is hooked
    restore_hook()
    original = getattr(GenerationMixin, HOOKED)
    assert original is not hooked
    assert original.__module__ == "transformers.generation.utils"
    restore_hook()
    assert getattr(GenerationMixin, HOOKED) is original
    install_hook()
    assert getattr(GenerationMixin, HOOKED) is not original
    assert inspect.signature(getattr(GenerationMixin, HOOKED)) == inspect.signature(original)


def test_without_the_hook_our_generator_is_not_reached(pristine_hook: Any) -> None:
    """The hook, and nothing else, is what brings our generator in."""
    target = make_tiny("llama")
    draft = make_draft(target, range(100))
    assert isinstance(chosen(target, assistant_model=draft), TrimmedCandidateGenerator)
    restore_hook()
    assert isinstance(chosen(target, assistant_model=draft), AssistedCandidateGenerator)


def test_other_ways_of_drafting_are_untouched() -> None:
    target = make_tiny("llama")
    assert type(chosen(target, assistant_model=target)) is AssistedCandidateGenerator
    lookup = chosen(target, config={"prompt_lookup_num_tokens": 3})
    assert type(lookup) is PromptLookupCandidateGenerator


def test_positional_arguments_reach_our_generator() -> None:
    target = make_tiny("llama")
    draft = make_draft(target, range(100))
    config = GenerationConfig(max_length=20)
    prompt = make_prompt(4)
    hooked = getattr(target, HOOKED)
    generator = hooked(config, prompt, prompt, LogitsProcessorList(), {}, draft)
    assert isinstance(generator, TrimmedCandidateGenerator)
    assert generator.get_candidates(prompt)[0].shape == (1, 8)


def test_plain_error_if_the_private_name_is_gone(
    monkeypatch: pytest.MonkeyPatch, pristine_hook: Any
) -> None:
    monkeypatch.delattr(GenerationMixin, HOOKED)
    with pytest.raises(RuntimeError, match=f"no GenerationMixin.{HOOKED}.*upgrade vtrim_hf"):
        install_hook()
    restore_hook()  # nothing to restore, nothing to say


def shipped_copy(tmp_path: Path) -> ModuleType:
    """Load the package's code a second time, the way that code from a repository is loaded."""
    source = Path(assisted_generation.__file__).parent
    folder = tmp_path / "shipped_draft"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    for file in source.glob("*.py"):
        if file.name != "__init__.py":
            (folder / file.name).write_text(file.read_text("utf-8"), "utf-8")
    spec = util.spec_from_file_location(
        "shipped_draft", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    package = util.module_from_spec(spec)
    sys.modules["shipped_draft"] = package
    __import__("shipped_draft.assisted_generation")
    return sys.modules["shipped_draft.assisted_generation"]


@pytest.mark.parametrize("first", ["installed", "shipped"])
def test_shipped_and_installed_code_side_by_side(
    first: str, tmp_path: Path, pristine_hook: Any
) -> None:
    other = shipped_copy(tmp_path)
    try:
        restore_hook()
        original = getattr(GenerationMixin, HOOKED)
        for module in (assisted_generation, other)[:: 1 if first == "installed" else -1]:
            module.install_hook()
            if module is (assisted_generation if first == "installed" else other):
                hooked = getattr(GenerationMixin, HOOKED)
        assert getattr(GenerationMixin, HOOKED) is hooked
        target = make_tiny("llama")
        draft = make_draft(target, range(100))
        ours = chosen(target, assistant_model=draft)
        assert isinstance(ours, TrimmedCandidateGenerator)
        # A draft whose class came with a repository: only the marker is the same.
        foreign = SimpleNamespace(
            make_candidate_generator=lambda **call: other.make_candidate_generator(
                draft, ScriptedSession([1] * 9), **call
            )
        )
        theirs = chosen(target, assistant_model=foreign)
        assert isinstance(theirs, other.TrimmedCandidateGenerator)
        assert not isinstance(theirs, TrimmedCandidateGenerator)
        # Either copy can take the hook out again.
        (other if first == "installed" else assisted_generation).restore_hook()
        assert getattr(GenerationMixin, HOOKED) is original
    finally:
        for name in [name for name in sys.modules if name.startswith("shipped_draft")]:
            del sys.modules[name]


def test_transformers_still_has_what_is_relied_on() -> None:
    """Both ends of the range: the private place and the calls made through it."""
    original = inspect.unwrap(getattr(GenerationMixin, HOOKED))
    parameters = inspect.signature(original).parameters
    relied_on = {
        "generation_config",
        "input_ids",
        "logits_processor",
        "model_kwargs",
        "assistant_model",
        "target_tokenizer",
    }
    assert relied_on <= set(parameters)
    loop = inspect.getsource(GenerationMixin._assisted_decoding)
    assert f"self.{HOOKED}(" in loop
    for use in (
        "candidate_generator.requires_model_outputs",
        "candidate_generator.get_candidates(input_ids)",
        "candidate_generator.model_kwargs_overrides",
        "candidate_generator.update_candidate_strategy(input_ids, new_logits, n_matches)",
        "model_outputs=outputs",
        "is_first_iteration=is_first_iteration",
        "n_last_matches=n_matches",
    ):
        assert use in loop, use
    update = inspect.signature(CandidateGenerator.update_candidate_strategy).parameters
    assert list(update) == ["self", "input_ids", "scores", "num_matches"]
    settings = GenerationConfig()
    for name in (
        "num_assistant_tokens",
        "num_assistant_tokens_schedule",
        "assistant_confidence_threshold",
        "assistant_ensemble_weight",
        "prompt_lookup_num_tokens",
        "assistant_early_exit",
        "use_mtp",
        "speculation_type",
        "guidance_scale",
    ):
        assert hasattr(settings, name), name


def test_a_body_that_needs_the_targets_outputs_gets_them() -> None:
    """The way in for bodies that fuse the target's hidden states."""

    class Listening(ScriptedSession):
        requires_model_outputs = True

        def __init__(self) -> None:
            super().__init__([1] * 99)
            self.model_kwargs_overrides = {"output_hidden_states": True}

    target = make_tiny("llama")
    session = Listening()
    draft: Any = make_draft(target, KEPT.tolist(), length=3)
    draft.make_candidate_generator = lambda **call: assisted_generation.make_candidate_generator(
        draft, session, **call
    )
    plain = target.generate(make_prompt(), max_new_tokens=6)
    assert torch.equal(
        target.generate(make_prompt(), max_new_tokens=6, assistant_model=draft), plain
    )
    first, second = session.inputs[:2]
    assert first["is_first_iteration"] is True
    assert first["model_outputs"] is None
    assert second["is_first_iteration"] is False
    assert len(second["model_outputs"].hidden_states) == 3
    assert {"model_kwargs", "n_last_matches"} <= set(second)
