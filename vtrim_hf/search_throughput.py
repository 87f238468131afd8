"""Which size and draft length promise most tokens a second, and whether to trim or draft at all.

The search part chooses the size and the length. Whether a cut head beats the whole one, and
either beats no draft, is judged on the held-out part where there is one: a vocabulary covers all
that it was chosen from, and only other text shows what it lacks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .decoding_model import DecodingModel
from .latency import LatencyModel
from .search_space import SearchSpace, running_coverage, with_whole_head

TRIM, NO_TRIM, NO_DRAFT = ADVICE = ("trim", "do not trim", "do not draft")

# A gain below this is none: the same sums in another order.
_SAME = 1e-9

Pair = tuple[int, int]
"""A size and a draft length."""


@dataclass(frozen=True)
class Decision:
    """What was chosen.

    Attributes:
        size: k.
        draft_length: tokens drafted a round; 0 for no draft.
        utility: expected speed-up over no draft, on the search part.
        expected: the figures behind it, see `SearchResult.expected`.
    """

    size: int
    draft_length: int
    utility: float
    expected: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Throughput:
    """The expected speed-up of every size and draft length.

    Attributes:
        model: what it was computed with.
        space: the allowed sizes; their utility is the speed-up with the best draft length.
        whole: the space, and the whole head besides.
        whole_allowed: whether the whole head may be chosen.
        coverage: float64 [sizes of `whole`], by part: "search", and "heldout" if there is one.
        tokens: float64 [1 + lengths, sizes of `whole`], tokens a round, by part.
        speedups: float64 [1 + lengths, sizes of `whole`], by part; row 0 is 1.
    """

    model: DecodingModel
    space: SearchSpace
    whole: SearchSpace
    whole_allowed: bool
    coverage: Mapping[str, np.ndarray]
    tokens: Mapping[str, np.ndarray]
    speedups: Mapping[str, np.ndarray]

    @classmethod
    def of(
        cls,
        space: SearchSpace,
        counts: Any,
        latency: LatencyModel,
        model: DecodingModel,
        k_max: int | None,
    ) -> Throughput:
        """Weigh every size of a space, and the whole head.

        Args:
            space: the allowed sizes.
            counts: the `TokenCounts` that it was made from.
            latency: what a draft step costs.
            model: what a round gives and takes.
            k_max: the largest size that was asked for; the whole head is chosen only if it fits.

        Raises:
            ValueError: if the latency model's costs cannot be turned into seconds.
        """
        whole = with_whole_head(space, counts, latency)
        step = model.step_seconds(latency, whole.sizes)
        held = running_coverage(counts.array(part="heldout"), whole.ranked, whole.sizes)
        coverage = {"search": whole.coverage}
        if not np.isnan(held).any():
            coverage["heldout"] = held
        speedups = {part: model.speedups(share, step) for part, share in coverage.items()}
        best = speedups["search"][1:].max(axis=0)
        return cls(
            model=model,
            space=replace(space, utility=best[: space.sizes.size]),
            whole=replace(whole, utility=best),
            whole_allowed=k_max is None or k_max >= whole.sizes[-1],
            coverage=coverage,
            tokens={part: model.tokens_per_round(share) for part, share in coverage.items()},
            speedups=speedups,
        )

    @property
    def weighed(self) -> SearchSpace:
        """Every size that may be chosen."""
        return self.whole if self.whole_allowed else self.space

    @property
    def heldout_utility(self) -> np.ndarray | None:
        """Speed-ups on the held-out part, with the length that the search part prefers."""
        if "heldout" not in self.speedups:
            return None
        lengths = self.speedups["search"][1:].argmax(axis=0) + 1
        held = np.take_along_axis(self.speedups["heldout"], lengths[None], axis=0)[0]
        return np.asarray(held[: self.weighed.sizes.size])

    def value(self, size: int, draft_length: int) -> float:
        """Return the expected speed-up of one size and length, on the search part."""
        return float(self.speedups["search"][draft_length, self.whole.position(size)])

    def best(self) -> Pair | None:
        """Return the best trimmed size that meets every floor, and its length.

        The smallest of equals; None if only the whole head is there.
        """
        cut = self.whole.feasible & (self.whole.sizes < self.whole.sizes[-1])
        if not cut.any():
            return None
        values = np.where(cut, self.speedups["search"][1:], -np.inf)
        place = int(np.argmax(values.max(axis=0)))
        return int(self.whole.sizes[place]), int(np.argmax(values[:, place])) + 1

    @property
    def cut(self) -> SearchSpace:
        """The allowed sizes without the whole head; with it where no other meets the floors.

        A study looks among these: whether any cut head is worth it, `decide` says.
        """
        last = self.space.sizes.size - (self.space.sizes[-1] == self.whole.sizes[-1])
        if not self.space.feasible[:last].any():
            return self.space
        return replace(
            self.space,
            sizes=self.space.sizes[:last],
            coverage=self.space.coverage[:last],
            reduction=self.space.reduction[:last],
            utility=self.space.utility[:last],
            floors=tuple(
                replace(floor, coverage=floor.coverage[:last]) for floor in self.space.floors
            ),
        )

    def decide(self, found: Pair | None = None) -> Decision:
        """Judge the best trimmed pair against the whole head and no draft.

        The answer is about the best pair that there is, whatever was found: a study of few trials
        is no reason not to trim.

        Args:
            found: the size and length that a study found, chosen in the best pair's place.
        """
        full = int(self.whole.sizes[-1])
        whole = (full, int(np.argmax(self.speedups["search"][1:, -1])) + 1)
        trimmed = self.best()
        part = "heldout" if "heldout" in self.speedups else "search"

        def judged(option: Pair) -> float:
            return float(self.speedups[part][option[1], self.whole.position(option[0])])

        no_better = trimmed is None or judged(trimmed) <= judged(whole) * (1 + _SAME)
        best = whole if trimmed is None or no_better else trimmed
        advice = NO_TRIM if no_better else TRIM
        if judged(best) <= 1 + _SAME:
            advice = NO_DRAFT
        if trimmed is not None and (advice == NO_DRAFT or not self.whole_allowed):
            best = trimmed
        size, length = best
        if judged(best) <= 1 + _SAME:
            length = 0
        if found is not None and best == trimmed:
            size, length = found[0], found[1] if length else 0
        expected = {
            "advice": advice,
            "judged_on": part,
            "plain": {"tokens_per_second": self.model.plain_speed},
            "chosen": self._figures((size, length)),
            "trimmed": None if trimmed is None else self._figures(trimmed),
            "full": self._figures(whole),
            "beyond_measured": length > len(self.model.acceptance),
            "by_length": [self._best_of(length) for length in range(1, len(self.lengths))],
        }
        return Decision(size, length, self.value(size, length), expected)

    @property
    def lengths(self) -> range:
        """The draft lengths, 0 among them."""
        return range(self.model.max_draft_length + 1)

    def _best_of(self, length: int) -> dict[str, Any]:
        """Return the best allowed size for a draft length, with its figures."""
        space = self.weighed
        values = np.where(
            space.feasible, self.speedups["search"][length, : space.sizes.size], -np.inf
        )
        return self._figures((int(space.sizes[np.argmax(values)]), length))

    def _figures(self, option: Pair) -> dict[str, Any]:
        size, length = option
        place = self.whole.position(size)
        figures: dict[str, Any] = {"k": size, "draft_length": length, "heldout": None}
        for part, speedups in self.speedups.items():
            speedup = float(speedups[length, place])
            figures[part] = {
                "coverage": float(self.coverage[part][place]),
                "tokens_per_round": float(self.tokens[part][length, place]),
                "tokens_per_second": speedup * self.model.plain_speed,
                "speedup": speedup,
            }
        return figures


def with_interval(
    decision: Decision,
    model: DecodingModel,
    latency: LatencyModel,
    interval: tuple[float, float],
) -> dict[str, Any]:
    """Return what is expected, with what the interval of the coverage makes of the speed-up.

    Args:
        decision: what was chosen.
        model: what a round gives and takes.
        latency: what a draft step costs.
        interval: 95 % interval of the coverage, of the part that judges.
    """
    step = model.step_seconds(latency, np.asarray([decision.size]))
    ends = model.speedups(np.asarray(interval), step.repeat(2))[decision.draft_length]
    return {**decision.expected, "interval": [float(end) for end in ends]}


def check_arguments(
    objective: str,
    decoding: Any,
    *,
    alpha: float,
    preset: str | None,
    usual_alpha: float,
) -> None:
    """Raise unless what an objective needs is there, and nothing that it does not know.

    Raises:
        ValueError: naming the argument.
        TypeError: if `decoding` is no `DecodingModel`.
    """
    if objective == "utility":
        if decoding is not None:
            raise ValueError(
                "decoding is for objective='throughput', and the objective is 'utility': leave "
                "out decoding, or say objective='throughput'"
            )
        return
    if decoding is None:
        raise ValueError(
            "objective='throughput' needs decoding, what a round of drafting gives and takes: "
            "DecodingModel.from_report(DecodeReport.load(path)), or "
            "DecodingModel.measured(target, acceptance=[0.8, ...])"
        )
    if not isinstance(decoding, DecodingModel):
        raise TypeError(f"decoding must be a DecodingModel, got {type(decoding).__name__}")
    if preset is not None:
        raise ValueError(
            f"the preset {preset!r} is the paper's search, whose objective is 'utility': leave "
            "out preset or objective"
        )
    if alpha != usual_alpha:
        raise ValueError(
            f"alpha weighs coverage in objective='utility', and throughput has no weights, got "
            f"alpha={alpha}: leave it out"
        )
