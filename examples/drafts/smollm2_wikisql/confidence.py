"""How sure a draft is that the target will take its guesses: the rule that ends a draft early.

A head of k rows leaves out what the other tokens would have had, so its softmax promises too
much. `calibrated` turns it into the probability that the target accepts, by a line between
log-odds that was fitted on what a target took. Settings are fields of the draft's
`generation_config` and are never written back. This module knows neither models nor tensors.
"""

from __future__ import annotations

import math
from typing import Any

THRESHOLD = "assistant_confidence_threshold"
CALIBRATION = "assistant_confidence_calibration"
"""Our own field of a draft's `generation_config`: slope and offset, or None."""

# float32 does not tell probabilities apart that are closer to 0 or 1.
_LEAST = 1e-6


class ConfidenceRule:
    """Ends a draft behind the token with which it has become too doubtful.

    A token counts only if the target takes all before it too, so it is the product of their
    probabilities that is held against the threshold.

    Args:
        threshold: the least probability, of all tokens so far being accepted, with which drafting
            goes on.
        slope: of the calibration.
        offset: of the calibration.
    """

    def __init__(self, threshold: float, slope: float = 1.0, offset: float = 0.0) -> None:
        self._threshold = threshold
        self._slope = slope
        self._offset = offset
        self._all_accepted = 1.0

    def begin(self) -> None:
        """Begin a draft."""
        self._all_accepted = 1.0

    def doubts(self, probability: float) -> bool:
        """Tell whether the next token of a draft is its last.

        Args:
            probability: that the draft's own softmax gave the token.
        """
        self._all_accepted *= calibrated(probability, self._slope, self._offset)
        return self._all_accepted < self._threshold


def confidence_rule(settings: Any) -> ConfidenceRule | None:
    """Make the rule of a draft; None if it never stops early.

    Args:
        settings: the draft's generation config.

    Raises:
        ValueError: if the threshold is negative, or the calibration is not None and not two finite
            numbers, the slope at least 0.
    """
    threshold = getattr(settings, THRESHOLD, None) or 0.0
    if not _is_number(threshold) or threshold < 0:
        raise ValueError(
            f"the draft's generation_config.{THRESHOLD} must be a probability, got {threshold!r}: "
            "0 drafts num_assistant_tokens whatever the draft thinks of them"
        )
    calibration = getattr(settings, CALIBRATION, None)
    slope, offset = (1.0, 0.0) if calibration is None else _checked(calibration)
    return ConfidenceRule(float(threshold), slope, offset) if threshold else None


def log_odds(probability: float) -> float:
    """Return log(p / (1 - p)); p counts as no closer to 0 and 1 than float32 can tell."""
    p = min(max(probability, _LEAST), 1.0 - _LEAST)
    return math.log(p / (1.0 - p))


def calibrated(probability: float, slope: float, offset: float) -> float:
    """Return the probability of acceptance that one of the trimmed softmax stands for."""
    score = slope * log_odds(probability) + offset
    # Either way the exponential is of a negative number.
    odds = math.exp(-abs(score))
    return (1.0 if score > 0 else odds) / (1.0 + odds)


def _checked(calibration: Any) -> tuple[float, float]:
    pair = list(calibration) if isinstance(calibration, list | tuple) else []
    if len(pair) != 2 or not all(map(_is_number, pair)) or pair[0] < 0:
        raise ValueError(
            f"the draft's generation_config.{CALIBRATION} must be two finite numbers [slope, "
            f"offset], the slope at least 0, got {calibration!r}: let calibrate_confidence find "
            "them, or set None to take the draft's softmax as it is"
        )
    return float(pair[0]), float(pair[1])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
