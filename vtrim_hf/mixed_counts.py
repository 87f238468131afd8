"""Counts of several domains read as one: the mixture's figures, and how sure they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from .counted_blocks import PART_NAMES, DomainCounts


class HasIds(Protocol):
    """What a `DraftVocabulary` offers here."""

    @property
    def ids(self) -> Any: ...


@dataclass(frozen=True, eq=False)
class MixedCounts:
    """The half of a `TokenCounts` that is read.

    Attributes:
        vocab_size: V, the width of every array.
        tokenizer_hash: `tokenizer_fingerprint` of the tokenizer, or None if unknown.
        weights: by domain; see `TokenCounts.merge`.
    """

    vocab_size: int
    tokenizer_hash: str | None
    weights: Mapping[str, float]
    _counts: Mapping[str, DomainCounts] = field(repr=False)
    _arrays: dict[tuple[str, str | None], np.ndarray] = field(
        default_factory=dict, repr=False, kw_only=True
    )

    @property
    def domains(self) -> tuple[str, ...]:
        """Names of the domains, in the order they came."""
        return tuple(self._counts)

    def array(self, part: str = "search", domain: str | None = None) -> np.ndarray:
        """Give the counts by token id.

        Args:
            part: "search", "heldout" or "all".
            domain: one domain's own counts; None for the mixture of all by their weights.

        Returns:
            int64 [V].

        Raises:
            ValueError: for an unknown part or domain.
        """
        return self._array(part, domain).copy()

    def total(self, part: str = "search", domain: str | None = None) -> int:
        """Sum `array(part, domain)`."""
        return int(self._array(part, domain).sum())

    def conversations(self, part: str = "search", domain: str | None = None) -> int:
        """How many conversations were counted, never weighted; 0 where that is not known."""
        return sum(counts.conversation_number(part) for counts in self._of(part, domain).values())

    def coverage(
        self, vocabulary: HasIds | Iterable[int], part: str = "search", domain: str | None = None
    ) -> float:
        """Tell which share of the part's tokens a vocabulary can say.

        Args:
            vocabulary: a `DraftVocabulary`, or token ids of the target.
            part: "search", "heldout" or "all".
            domain: one domain, or None for the mixture.

        Returns:
            A share from 0 to 1; nan if the part holds no token.

        Raises:
            ValueError: if the vocabulary is of another tokenizer, or an id lies beyond the width.
        """
        kept = self._kept(vocabulary)
        counts = self._array(part, domain)
        total = int(counts.sum())
        return int(counts[kept].sum()) / total if total else float("nan")

    def coverage_interval(
        self,
        vocabulary: HasIds | Iterable[int],
        part: str = "search",
        domain: str | None = None,
        level: float = 0.95,
        resamples: int = 1000,
        seed: int = 0,
    ) -> tuple[float, float]:
        """Tell how far the coverage of other conversations of this kind may lie from what was
        counted.

        The hashed blocks of conversations, not single tokens, are drawn anew with replacement,
        each domain's by themselves, and the middle `level` of the coverages is given (percentile
        bootstrap).

        Args:
            vocabulary: as for `coverage`.
            part: as for `coverage`.
            domain: as for `coverage`.
            level: share of the drawings inside the interval.
            resamples: drawings.
            seed: of the drawings.

        Returns:
            (low, high); (0.0, 1.0) if all tokens lie in one block, which says nothing about their
            spread; (nan, nan) if the part holds no token.
        """
        if not 0 < level < 1 or resamples < 1:
            raise ValueError(
                f"level must lie in (0, 1) and resamples be at least 1, got {level} and "
                f"{resamples}"
            )
        kept = self._kept(vocabulary)
        chosen = self._of(part, domain)
        if not self.total(part, domain):
            return float("nan"), float("nan")
        if sum(counts.filled_blocks(part) for counts in chosen.values()) == 1:
            return 0.0, 1.0
        weights = self.weights if domain is None else {domain: 1.0}
        drawn = mixed_coverages(chosen, weights, kept, part, resamples, seed)
        low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
        return float(low), float(high)

    def _of(self, part: str, domain: str | None) -> Mapping[str, DomainCounts]:
        if part not in PART_NAMES:
            raise ValueError(f"part must be one of {', '.join(PART_NAMES)}, got {part!r}")
        if domain is None:
            return self._counts
        if domain not in self._counts:
            raise ValueError(f"domain must be one of {', '.join(self.domains)}, got {domain!r}")
        return {domain: self._counts[domain]}

    def _array(self, part: str, domain: str | None) -> np.ndarray:
        """Sum the blocks once and keep the sum: a search asks for it again and again."""
        chosen = self._of(part, domain)
        if (part, domain) not in self._arrays:
            weights = self.weights if domain is None else {domain: 1.0}
            self._arrays[part, domain] = mixed_array(chosen, weights, part)
        return self._arrays[part, domain]

    def _kept(self, vocabulary: HasIds | Iterable[int]) -> np.ndarray:
        theirs = getattr(vocabulary, "tokenizer_hash", None)
        if theirs and self.tokenizer_hash and theirs != self.tokenizer_hash:
            raise ValueError(
                f"the vocabulary is of another tokenizer ({theirs[:12]}) than the counts "
                f"({self.tokenizer_hash[:12]}): count with the target's own"
            )
        ids = np.asarray(
            vocabulary.ids if hasattr(vocabulary, "ids") else list(vocabulary), dtype=np.int64
        )
        if ids.size and (ids.min() < 0 or ids.max() >= self.vocab_size):
            wrong = int(ids[(ids < 0) | (ids >= self.vocab_size)][0])
            raise ValueError(
                f"id {wrong} lies outside the counts' width {self.vocab_size}: count with "
                "vocab_size= the target's own"
            )
        kept = np.zeros(self.vocab_size, dtype=bool)
        kept[ids] = True
        return kept


def mixed_array(
    domains: Mapping[str, DomainCounts], weights: Mapping[str, float], part: str
) -> np.ndarray:
    """Sum the domains' counts times their weights: int64 [V]; see `TokenCounts.merge`."""
    arrays = {name: counts.array(part) for name, counts in domains.items()}
    if all(float(weights[name]).is_integer() for name in domains):
        exact = [array * int(weights[name]) for name, array in arrays.items()]
        return np.asarray(sum(exact[1:], exact[0]), dtype=np.int64)
    mixed = sum((array * float(weights[name]) for name, array in arrays.items()), 0.0)
    mixed = np.asarray(mixed, dtype=np.float64)
    # A token that was seen keeps its claim to a place, however small its domain's weight.
    return np.where(mixed > 0, np.maximum(np.rint(mixed), 1), 0).astype(np.int64)


def mixed_coverages(
    domains: Mapping[str, DomainCounts],
    weights: Mapping[str, float],
    kept: np.ndarray,
    part: str,
    resamples: int,
    seed: int,
) -> np.ndarray:
    """Draw each domain's blocks anew and give the mixture's coverage of each drawing: float64."""
    rng = np.random.default_rng(seed)
    covered, total = np.zeros(resamples), np.zeros(resamples)
    for name, counts in domains.items():
        one_covered, one_total = counts.resampled(kept, part, resamples, rng)
        covered += weights[name] * one_covered
        total += weights[name] * one_total
    return covered[total > 0] / total[total > 0]
