"""The rule that ends a draft early: calibrated probabilities, their product, its settings."""

from __future__ import annotations

import math
from typing import Any

import pytest
from transformers import GenerationConfig

from drafting import make_draft
from tiny_models import make_prompt, make_tiny
from vtrim_hf.confidence import CALIBRATION, ConfidenceRule, calibrated, confidence_rule, log_odds
from vtrim_hf.modeling_trimmed_draft import TrimmedDraftForCausalLM


def settings(threshold: Any = 0.4, calibration: Any = None) -> GenerationConfig:
    return GenerationConfig(assistant_confidence_threshold=threshold, **{CALIBRATION: calibration})


@pytest.mark.parametrize("probability", [1e-5, 0.2, 0.5, 0.9, 0.99999])
def test_uncalibrated_is_the_softmax(probability: float) -> None:
    assert calibrated(probability, 1.0, 0.0) == pytest.approx(probability)


@pytest.mark.parametrize(
    ("slope", "offset"), [(0.6, -1.2), (1.0, 0.5), (2.0, 0.0), (0.0, 0.3), (90.0, -60.0)], ids=str
)
def test_calibrated(slope: float, offset: float) -> None:
    probabilities = [0.0, 1e-9, 0.1, 0.4, 0.6, 0.95, 1.0 - 1e-9, 1.0]
    found = [calibrated(probability, slope, offset) for probability in probabilities]
    assert found == sorted(found)
    assert all(0.0 <= value <= 1.0 for value in found)
    odds = (0.6 / 0.4) ** slope * math.exp(offset)
    assert found[4] == pytest.approx(odds / (1 + odds))
    # What float32 cannot tell apart is the same.
    assert found[0] == found[1]
    assert found[-1] == found[-2]


def test_log_odds() -> None:
    assert log_odds(0.75) == pytest.approx(math.log(3))
    assert log_odds(0.0) == pytest.approx(-log_odds(1.0))
    assert math.isfinite(log_odds(0.0))


def test_all_tokens_so_far_count() -> None:
    rule = ConfidenceRule(0.4)
    for _ in range(2):
        rule.begin()
        # .8, .64, .512, .41, .33
        assert [rule.doubts(0.8) for _ in range(5)] == [False] * 4 + [True]
    rule.begin()
    assert rule.doubts(0.39)


def test_calibration_moves_the_end() -> None:
    def length(*calibration: float) -> int:
        rule = ConfidenceRule(0.4, *calibration)
        rule.begin()
        return next(n for n in range(1, 99) if rule.doubts(0.9))

    assert length() == 9
    assert length(0.7, -0.5) < length() < length(1.0, 1.0)


@pytest.mark.parametrize("threshold", [None, 0, 0.0])
def test_no_threshold_no_rule(threshold: float | None) -> None:
    assert confidence_rule(settings(threshold, [0.5, 0.5])) is None
    assert confidence_rule(GenerationConfig()) is None


def test_settings_are_read() -> None:
    rule = confidence_rule(settings(0.5, [0.5, -1.0]))
    assert rule is not None
    # sigmoid(.5 * log 9 - 1) = .525; sigmoid(.5 * log 4 - 1) = .42
    rule.begin()
    assert not rule.doubts(0.9)
    rule.begin()
    assert rule.doubts(0.8)
    # Above 1 every draft ends with its first token.
    rule = confidence_rule(settings(2))
    assert rule is not None
    assert rule.doubts(1.0)


@pytest.mark.parametrize("threshold", [-0.1, "0.4", float("nan"), float("inf"), True], ids=repr)
def test_thresholds_that_mean_nothing(threshold: Any) -> None:
    with pytest.raises(ValueError, match="threshold must be a probability, got"):
        confidence_rule(settings(threshold))


@pytest.mark.parametrize(
    "calibration",
    [
        [1.0],
        [1.0, 0.0, 0.0],
        [],
        1.0,
        [-0.1, 0.0],
        [float("nan"), 0.0],
        [1.0, float("inf")],
        ["1", "0"],
        [True, 0.0],
        {"slope": 1.0, "offset": 0.0},
    ],
    ids=repr,
)
@pytest.mark.parametrize("threshold", [0.0, 0.4])
def test_calibrations_that_mean_nothing(calibration: Any, threshold: float) -> None:
    with pytest.raises(ValueError, match=r"must be two finite numbers.*calibrate_confidence"):
        confidence_rule(settings(threshold, calibration))


def test_settings_are_checked_before_the_first_token() -> None:
    target = make_tiny("llama")
    draft = make_draft(target)
    setattr(draft.generation_config, CALIBRATION, [-1.0, 0.0])
    with pytest.raises(ValueError, match=r"got \[-1.0, 0.0\]"):
        target.generate(make_prompt(), assistant_model=draft, max_new_tokens=2)


@pytest.mark.parametrize("calibration", [None, [0.7, -0.25]])
def test_calibration_is_saved_with_the_draft(calibration: Any, tmp_path: Any) -> None:
    draft = make_draft(make_tiny("llama"), range(50), threshold=0.3)
    if calibration is not None:
        setattr(draft.generation_config, CALIBRATION, calibration)
    draft.generation_config.validate(strict=True)
    draft.save_pretrained(tmp_path)
    loaded = TrimmedDraftForCausalLM.from_pretrained(tmp_path)
    assert getattr(loaded.generation_config, CALIBRATION, None) == calibration
    assert loaded.generation_config.assistant_confidence_threshold == 0.3
    assert confidence_rule(loaded.generation_config) is not None
    # A setting of ours is no argument that `generate` of the draft stumbles over.
    assert loaded.generate(make_prompt(4), max_new_tokens=2, pad_token_id=0).shape == (1, 6)
