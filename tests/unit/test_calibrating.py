"""Fitting confidence: the regression on made-up data, and on what a tiny target takes."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch

from drafting import make_draft, watch
from tiny_models import VOCAB_SIZE, make_prompt, make_tiny, perturbed
from vtrim_hf import calibrating
from vtrim_hf.calibrating import calibrate_confidence, fit_calibration, log_loss
from vtrim_hf.confidence import CALIBRATION, calibrated, log_odds


def outcomes(
    slope: float, offset: float, count: int, seed: int = 0
) -> tuple[list[float], list[bool]]:
    chance = random.Random(seed)
    probabilities = [chance.betavariate(2.0, 0.7) for _ in range(count)]
    return probabilities, [chance.random() < calibrated(p, slope, offset) for p in probabilities]


@pytest.mark.parametrize(
    ("slope", "offset"), [(1.0, 0.0), (0.6, -1.2), (1.7, 0.4), (0.2, 1.0), (0.0, -0.5)], ids=str
)
def test_known_lines_are_found(slope: float, offset: float) -> None:
    found = fit_calibration(*outcomes(slope, offset, 20_000))
    assert found == pytest.approx((slope, offset), abs=0.07)


def test_fit_is_the_optimum() -> None:
    """Nowhere near is the penalised loss less."""
    probabilities, accepted = outcomes(0.6, -1.0, 50)
    best = fit_calibration(probabilities, accepted, ridge=2.0)

    def loss(slope: float, offset: float) -> float:
        misfit = len(accepted) * log_loss(probabilities, accepted, slope, offset)
        return misfit + (slope - 1.0) ** 2 + offset**2

    around = [(ds, do) for ds in (-0.01, 0.0, 0.01) for do in (-0.01, 0.0, 0.01) if ds or do]
    assert all(loss(best[0] + ds, best[1] + do) > loss(*best) for ds, do in around)


def test_sure_and_often_wrong() -> None:
    """Newton's whole steps run away from where softmaxes are extreme."""
    probabilities = [1.0 - 10.0 ** -(1 + index % 6) for index in range(600)]
    accepted = [index % 5 > 2 for index in range(600)]
    slope, offset = fit_calibration(probabilities, accepted)
    assert calibrated(0.9999, slope, offset) == pytest.approx(0.4, abs=0.02)
    assert log_loss(probabilities, accepted, slope, offset) == pytest.approx(0.673, abs=0.005)
    assert log_loss(probabilities, accepted) > 3.0


@pytest.mark.parametrize(
    ("probabilities", "accepted"),
    [
        ([0.2, 0.3, 0.8, 0.9], [False, False, True, True]),
        ([0.9] * 50, [True] * 50),
        ([0.9] * 50, [False] * 50),
        ([1.0] * 50, [True, False] * 25),
        ([0.0, 1.0], [False, True]),
        ([0.5], [True]),
    ],
    ids=["separable", "all", "none", "constant", "extreme", "one"],
)
def test_little_to_go_by(probabilities: list[float], accepted: list[bool]) -> None:
    slope, offset = fit_calibration(probabilities, accepted)
    assert math.isfinite(slope)
    assert math.isfinite(offset)
    assert 0.0 <= slope < 10.0
    assert abs(offset) < 10.0
    assert log_loss(probabilities, accepted, slope, offset) <= log_loss(probabilities, accepted)
    # The pull is towards no calibration.
    pulled = fit_calibration(probabilities, accepted, ridge=1e6)
    assert pulled == pytest.approx((1.0, 0.0), abs=0.01)


def test_surer_and_more_often_wrong() -> None:
    probabilities = [0.6, 0.9] * 100
    accepted = [True, False] * 80 + [True, True] * 20
    slope, offset = fit_calibration(probabilities, accepted)
    assert slope == 0.0
    assert calibrated(0.5, slope, offset) == pytest.approx(0.6, abs=0.01)


@pytest.mark.parametrize(
    ("probabilities", "accepted", "ridge", "match"),
    [
        ([], [], 1.0, "at least one"),
        ([0.5], [True, False], 1.0, "got 1 probabilities and 2 outcomes"),
        ([0.5, 1.5], [True, False], 1.0, r"in \[0, 1\].*got \[1.5\]"),
        ([float("nan")], [True], 1.0, r"in \[0, 1\]"),
        ([0.5], [True], 0.0, "ridge above 0"),
    ],
)
def test_no_data(probabilities: Any, accepted: Any, ridge: float, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        fit_calibration(probabilities, accepted, ridge=ridge)


def pair() -> tuple[Any, Any]:
    """A target, and a draft that is surer than it should be."""
    target = make_tiny("llama")
    source = perturbed(target, 0.15)
    with torch.no_grad():
        source.lm_head.weight *= 2.0
    return target, make_draft(source, range(0, VOCAB_SIZE, 2), length=4, threshold=0.3)


def recorded(
    target: Any, draft: Any, prompts: list[torch.Tensor], monkeypatch: Any
) -> calibrating._Record:
    """Calibrate, and return what was gone by."""
    records = []

    class Kept(calibrating._Record):
        def __init__(self) -> None:
            super().__init__()
            records.append(self)

    with monkeypatch.context() as patch:
        patch.setattr(calibrating, "_Record", Kept)
        calibrate_confidence(target, draft, prompts, max_new_tokens=40)
    return records[0]


@pytest.mark.newest
def test_other_prompts_are_foretold_better(monkeypatch: pytest.MonkeyPatch) -> None:
    target, draft = pair()
    before = draft.generation_config.to_dict()
    found = calibrate_confidence(
        target, draft, [make_prompt(12, seed=seed) for seed in range(20)], max_new_tokens=40
    )
    line = getattr(draft.generation_config, CALIBRATION)
    assert line == [found.slope, found.offset]
    assert {**before, CALIBRATION: line} == draft.generation_config.to_dict()
    assert 0 < found.accepted < found.proposals
    assert found.log_loss_after < found.log_loss_before
    others = [make_prompt(12, seed=seed) for seed in range(100, 110)]
    unseen = recorded(target, draft, others, monkeypatch)
    told = unseen.probabilities, unseen.accepted
    assert len(unseen.accepted) > 50
    assert log_loss(*told, *line) < log_loss(*told) - 0.02
    # On the average a probability of acceptance is how often it happens.
    frequency = sum(unseen.accepted) / len(unseen.accepted)
    mean = sum(calibrated(p, *line) for p in unseen.probabilities) / len(unseen.accepted)
    softmax = sum(unseen.probabilities) / len(unseen.accepted)
    assert abs(mean - frequency) < 0.08 < softmax - frequency


def test_what_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every proposal up to and including the first refusal, with what the softmax gave it."""
    target, draft = pair()
    prompt = make_prompt(12, seed=3)
    record = recorded(target, draft, [prompt], monkeypatch)
    draft.generation_config.assistant_confidence_threshold = 0.0
    draft.generation_config.num_assistant_tokens = 5
    run = watch(target, draft, prompt, max_new_tokens=40)
    expected: list[tuple[float, bool]] = []
    text = prompt[0].tolist()
    said = run.new_ids
    for proposal in run.proposals:
        for position, ours in enumerate(proposal):
            if position == len(said):
                break
            if position < len(proposal) - 1:  # the last of a round is not asked about
                with torch.no_grad():
                    read = draft(torch.tensor([[*text, *proposal[:position]]]))
                law = read.logits[0, -1].softmax(-1)
                expected.append((float(law[ours]), ours == said[position]))
            if ours != said[position]:
                break
        agreed = 0
        while agreed < min(len(proposal), len(said)) and proposal[agreed] == said[agreed]:
            agreed += 1
        text += said[: agreed + 1]
        said = said[agreed + 1 :]
    assert record.accepted == [outcome for _, outcome in expected]
    assert record.probabilities == pytest.approx([p for p, _ in expected], abs=1e-4)
    assert len({log_odds(p) for p in record.probabilities}) > 5


def test_everything_is_put_back() -> None:
    target, draft = pair()
    draft.train()
    before = draft.generation_config.to_dict()
    with pytest.raises(ValueError, match="proposed nothing on 1 prompts"):
        calibrate_confidence(target, draft, [make_prompt()], max_new_tokens=1)
    assert draft.training
    assert draft.body.training
    assert not target.training
    assert "make_candidate_generator" not in vars(draft)
    assert draft.generation_config.to_dict() == before


def test_peft_wrapped_pair_is_unwrapped() -> None:
    target, draft = pair()

    class Wrapped(torch.nn.Module):
        def __init__(self, model: Any) -> None:
            super().__init__()
            self.model = model

        def get_base_model(self) -> Any:
            return self.model

        def generate(self, *args: Any, **kwargs: Any) -> Any:
            return self.model.generate(*args, **kwargs)

        def __getattr__(self, name: str) -> Any:
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(super().__getattr__("model"), name)

    found = calibrate_confidence(
        Wrapped(target), Wrapped(draft), [make_prompt()], max_new_tokens=20
    )
    assert getattr(draft.generation_config, CALIBRATION) == [found.slope, found.offset]


def test_what_cannot_be_calibrated() -> None:
    target, draft = pair()
    with pytest.raises(TypeError, match="must be a TrimmedDraftForCausalLM, got LlamaForCausalLM"):
        calibrate_confidence(target, target, [make_prompt()])
    with pytest.raises(TypeError, match="must be a loaded Transformers model"):
        calibrate_confidence("target", draft, [make_prompt()])
    with pytest.raises(ValueError, match="at least 1, got -1"):
        calibrate_confidence(target, draft, [make_prompt()], num_assistant_tokens=-1)
    with pytest.raises(ValueError, match="at least one prompt"):
        calibrate_confidence(target, draft, [])


@pytest.mark.parametrize(
    ("length", "named"), [(0, "at least 1, got 0"), (1.5, "whole number, got 1.5"), ("x", "'x'")]
)
def test_a_length_that_is_none_is_refused(length: Any, named: str) -> None:
    target = make_tiny("llama")
    with pytest.raises(ValueError, match=named):
        calibrate_confidence(
            target, make_draft(target), [make_prompt()], num_assistant_tokens=length
        )


def test_settings_that_never_reach_a_draft_are_named() -> None:
    target = make_tiny("llama")
    target.generation_config.num_beams = 3
    with pytest.raises(ValueError, match="num_beams=1, got 3"):
        calibrate_confidence(target, make_draft(target), [make_prompt()])
