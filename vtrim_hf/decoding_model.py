"""Expected tokens a second of drafting: from acceptance, coverage and the time that a round takes.

A round drafts n tokens with a head of k rows and lets the target check them all at once:

    speed(k, n) = A(k, n) / (T(n + 1) + n * t(k) + overhead)
    A(k, n) = 1 + sum over i <= n of the product over j <= i of r_j(k)
    r_j(k) = min(1, r_j * C(k) / C)

r_j is how often the token at position j was accepted, if all before it were, by a draft whose
vocabulary covered the share C of the text; C(k) is what k rows cover. T(m) is the target's time
for m tokens, t(k) the draft's for one. No draft gives 1 / T(1) tokens a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from .decoding_checks import checked_numbers, checked_rates
from .drafting_rates import acceptance_of, seconds_of
from .forward_timing import time_forwards
from .latency import LatencyModel

_TIMED = (1, 2, 3, 5, 9, 17, 33)


@dataclass(frozen=True)
class DecodingModel:
    """How fast a target decodes with a draft of k rows that drafts n tokens a round.

    Make one from numbers, from a measurement (`from_report`), or by timing a target (`measured`).

    Attributes:
        acceptance: r_1, r_2, ...: by position, how often a draft token is accepted if all before
            it were, in [0, 1]. Further positions repeat the last one.
        forward: seconds of a target's forward pass by its number of new tokens; 1 must be among
            them, and more tokens take no less. Between them time is linear, and beyond the last
            it rises as between the last two.
        coverage: C, the share of the text that the vocabulary of that draft covered: 1 for the
            full vocabulary.
        overhead: seconds of a round that neither model takes.
        plain_seconds: seconds a token takes without a draft, if not T(1).
        draft_step: rows of a head and the seconds that a step with it took, where that was
            measured. A cost model in seconds is raised to it by a constant, or scaled down to it;
            one in operations is scaled.
        max_draft_length: most tokens drafted a round, from 1 to 64.
        settings: JSON-able facts about how the model was made.

    Example:
        ```python
        decoding = DecodingModel([0.8, 0.75, 0.7], {1: 0.030, 5: 0.036}, draft_step=(49152, 0.004))
        found = search_vocabulary(counts, latency, objective="throughput", decoding=decoding)
        print(found.k, found.draft_length, found.expected["advice"])
        ```
    """

    acceptance: Sequence[float]
    forward: Mapping[float, float]
    coverage: float = 1.0
    overhead: float = 0.0
    plain_seconds: float | None = None
    draft_step: tuple[int, float] | None = None
    max_draft_length: int = 16
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in checked_numbers(self).items():
            object.__setattr__(self, name, value)

    @classmethod
    def from_report(
        cls,
        report: Any,
        entry_name: str = "draft",
        *,
        coverage: float | None = None,
        forward: Mapping[float, float] | None = None,
        overhead: float = 0.0,
        max_draft_length: int = 16,
    ) -> DecodingModel:
        """Read acceptance and times out of a measurement of one draft of the same kind.

        A report has the target's time for one token, from plain decoding, and for as many as that
        draft had checked on average; what `generate` spends besides is in both. A measurement
        with long drafts, such as `num_assistant_tokens=8`, tells most.

        Args:
            report: a `DecodeReport`.
            entry_name: which of its drafts: one whose drafts are not ended early.
            coverage: share of the text's tokens that this draft could say; by default the share
                of the target's own answers in that measurement.
            forward: the target's seconds by number of tokens, instead of the report's.
            overhead: seconds of a round besides; 0 for the report's own times, which hold it.
            max_draft_length: most tokens drafted a round.

        Raises:
            ValueError: if there is no such draft in the report, it drafted nothing, or its drafts
                ended early by its confidence, which hides what the rest would have been worth.
        """
        rates, facts = acceptance_of(report, entry_name)
        times = seconds_of(report, entry_name)
        return cls(
            acceptance=rates,
            forward=times["forward"] if forward is None else forward,
            coverage=facts["coverage"] if coverage is None else coverage,
            overhead=overhead,
            plain_seconds=times["plain"] if forward is None else None,
            draft_step=times["step"],
            max_draft_length=max_draft_length,
            settings={
                "made_by": "DecodingModel.from_report",
                "entry": entry_name,
                "forward": "report" if forward is None else "given",
                **facts,
            },
        )

    @classmethod
    def measured(
        cls,
        target: Any,
        *,
        acceptance: Iterable[float],
        coverage: float = 1.0,
        overhead: float = 0.0,
        draft_step: tuple[int, float] | None = None,
        max_draft_length: int = 16,
        tokens: Sequence[int] | None = None,
        batch_size: int = 1,
        context_length: int = 128,
        rounds: int = 9,
    ) -> DecodingModel:
        """Time the target on its device, in its dtype, for several numbers of tokens.

        Each pass goes on from a copy of the same warm cache; the numbers of tokens take turns, and
        medians count, smoothed so that more tokens never take less.

        Args:
            target: the model that will verify, where and as it will run.
            acceptance: r_1, r_2, ...
            coverage: what the vocabulary of the draft with that acceptance covered.
            overhead: seconds of a round that neither model takes.
            draft_step: rows of a head and the seconds that a step with it took, if known.
            max_draft_length: most tokens drafted a round.
            tokens: numbers of tokens to time, 1 among them; by default 1, 2, 3, 5, 9 and so on up
                to `max_draft_length + 1`.
            batch_size: sequences in one pass.
            context_length: tokens in the cache.
            rounds: how often each is timed.

        Raises:
            ValueError: for arguments out of range.
        """
        given: dict[str, Any] = {
            "acceptance": checked_rates(acceptance),
            "coverage": coverage,
            "overhead": overhead,
            "draft_step": draft_step,
            "max_draft_length": max_draft_length,
        }
        cls(forward={1: 1.0}, **given)  # what is wrong is said before anything is timed
        most = max_draft_length + 1
        timing = time_forwards(
            target,
            tokens=sorted({1, *(n for n in _TIMED if n < most), most})
            if tokens is None
            else tokens,
            batch_size=batch_size,
            context_length=context_length,
            rounds=rounds,
        )
        return cls(
            forward=dict(zip(timing.tokens, timing.seconds, strict=True)),
            settings={
                "made_by": "DecodingModel.measured",
                "device": timing.device_name,
                "threads": torch.get_num_threads(),
                "dtype": timing.dtype,
                "batch_size": batch_size,
                "context_length": context_length,
                "rounds": rounds,
                "spread": max(timing.spreads),
            },
            **given,
        )

    @property
    def plain_speed(self) -> float:
        """Tokens a second without a draft."""
        return 1.0 / (self.plain_seconds or self.forward[1.0])

    def forward_seconds(self, tokens: np.ndarray) -> np.ndarray:
        """Return T for an array of numbers of tokens, each at least 1."""
        known, seconds = np.asarray([*self.forward]), np.asarray([*self.forward.values()])
        times = np.interp(tokens, known, seconds)
        if known.size > 1:
            slope = (seconds[-1] - seconds[-2]) / (known[-1] - known[-2])
            times += slope * np.maximum(0.0, tokens - known[-1])
        return np.asarray(times, dtype=np.float64)

    def step_seconds(self, latency: LatencyModel, sizes: np.ndarray) -> np.ndarray:
        """Return t(k), the seconds of one draft step, for an array of sizes in [1, V].

        Raises:
            ValueError: if the cost model counts no seconds and no measured step sets its scale.
        """
        costs = latency.costs(sizes)
        if self.draft_step is None:
            if latency.unit != "s":
                raise ValueError(
                    "tokens a second need a draft step in seconds, and this latency model counts "
                    f"{latency.unit}: make it with kind='bytes' or LatencyModel.measured, or say "
                    "what one step takes, DecodingModel(..., draft_step=(rows, seconds))"
                )
            return costs
        rows, seconds = self.draft_step
        there = latency.cost(min(rows, latency.vocab_size))
        if latency.unit == "s" and there <= seconds:
            return costs + (seconds - there)  # what the cost model does not know of
        return costs * (seconds / there)

    def tokens_per_round(self, coverage: np.ndarray) -> np.ndarray:
        """Return A: tokens that a round is expected to give.

        Args:
            coverage: float64 [sizes], C(k).

        Returns:
            float64 [1 + max_draft_length, sizes]: row n is for drafts of n tokens.
        """
        share = np.asarray(coverage, dtype=np.float64) / self.coverage
        tokens = np.ones((self.max_draft_length + 1, share.size))
        reached = np.ones(share.size)
        for length in range(1, self.max_draft_length + 1):
            rate = self.acceptance[min(length, len(self.acceptance)) - 1]
            reached = reached * np.minimum(1.0, rate * share)
            tokens[length] = tokens[length - 1] + reached
        return tokens

    def speedups(self, coverage: np.ndarray, step_seconds: np.ndarray) -> np.ndarray:
        """Return tokens a second over those without a draft.

        Args:
            coverage: float64 [sizes], C(k).
            step_seconds: float64 [sizes], t(k).

        Returns:
            float64 [1 + max_draft_length, sizes]: row n is for drafts of n tokens, row 0 is 1.
        """
        lengths = np.arange(self.max_draft_length + 1)[:, None]
        seconds = self.forward_seconds(lengths + 1.0) + lengths * step_seconds + self.overhead
        speedups = self.tokens_per_round(coverage) / seconds / self.plain_speed
        speedups[0] = 1.0
        return np.asarray(speedups)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain JSON types."""
        return {
            "acceptance": list(self.acceptance),
            "forward": [[tokens, seconds] for tokens, seconds in self.forward.items()],
            "coverage": float(self.coverage),
            "overhead": float(self.overhead),
            "plain_seconds": self.plain_seconds,
            "draft_step": self.draft_step and list(self.draft_step),
            "max_draft_length": self.max_draft_length,
            "settings": dict(self.settings),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> DecodingModel:
        """Read what `to_dict` gave.

        Raises:
            ValueError: if it is no such thing.
        """
        try:
            return cls(**{**data, "forward": dict(data["forward"])})
        except (KeyError, TypeError) as error:
            raise ValueError(f"this is no decoding model: {error}") from error
