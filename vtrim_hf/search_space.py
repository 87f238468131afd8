"""Every size that a draft vocabulary may have, with what it covers, saves and is worth.

Required ids come first, then ids by count, so one running sum gives the coverage of every size at
once, for all data and for each domain; the cost model gives what each size saves. The best size is
then read off. That is exact for this one order of the ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .latency import LatencyModel
from .vocabulary import rank_ids

# Widths of the same vocabulary differ by what it was padded to; more than this is another one.
_PADDING = 1024
# Coverages are quotients of whole numbers: one that just meets a floor may round to less.
_ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class Floor:
    """A least coverage, and the coverage of every size.

    Attributes:
        domain: the domain it is for, or None for all data.
        minimum: in [0, 1].
        coverage: float64 [sizes].
    """

    domain: str | None
    minimum: float
    coverage: np.ndarray

    @property
    def key(self) -> str:
        """A short name, unique among the floors of a search."""
        return "coverage" if self.domain is None else f"coverage:{self.domain}"

    @property
    def met(self) -> np.ndarray:
        """Which sizes reach the minimum: bool [sizes]."""
        return np.asarray(self.coverage >= self.minimum - _ROUNDING)

    def violation(self, position: int) -> float:
        """Return how far the size at this position falls short; above 0 only if it does."""
        return float(self.minimum - _ROUNDING - self.coverage[position])


@dataclass(frozen=True, eq=False)
class SearchSpace:
    """The sizes to choose from.

    Attributes:
        ranked: int64 [n], ids by need; the first k are the vocabulary of size k.
        required: how many of them are required.
        sizes: int64 [sizes], ascending.
        coverage: float64 [sizes], share of the search part's tokens.
        reduction: float64 [sizes], share of a step's cost that is saved.
        utility: float64 [sizes], `alpha * coverage + (1 - alpha) * reduction`.
        floors: coverage, of all data first and then of domains, that must be reached.
        step: distance between the sizes; the whole head, if `with_whole_head` added it, may lie
            further off.
    """

    ranked: np.ndarray
    required: int
    sizes: np.ndarray
    coverage: np.ndarray
    reduction: np.ndarray
    utility: np.ndarray
    floors: tuple[Floor, ...]
    step: int

    @property
    def feasible(self) -> np.ndarray:
        """Which sizes meet every floor: bool [sizes]."""
        return np.asarray(np.logical_and.reduce([floor.met for floor in self.floors]))

    def position(self, size: int) -> int:
        """Return where a size stands among the sizes."""
        return int(np.searchsorted(self.sizes, size))

    def best_size(self) -> int:
        """Return the size of greatest utility that meets every floor, the smallest of equals."""
        return int(self.sizes[np.argmax(np.where(self.feasible, self.utility, -np.inf))])


def build_space(
    counts: Any,
    latency: LatencyModel,
    *,
    required: Iterable[int],
    alpha: float,
    min_coverage: float,
    domain_floors: float | Mapping[str, float] | None,
    k_min: int,
    k_max: int | None,
    multiple_of: int,
) -> SearchSpace:
    """Compute every allowed size's figures; the arguments are those of `search_vocabulary`.

    Raises:
        ValueError: if an argument is out of range, there is nothing to choose from, or no size
            meets the floors.
    """
    _check_share("alpha", alpha)
    totals = counts.array(part="search")
    if abs(totals.size - latency.vocab_size) > _PADDING:
        raise ValueError(
            f"the counts are for a vocabulary of {totals.size} tokens, the latency model for one "
            f"of {latency.vocab_size}: make both from the same target"
        )
    if not totals.any():
        raise ValueError("the search part of the counts is empty: count data with assistant turns")
    wanted = np.unique(np.fromiter(required, dtype=np.int64))
    ranked = rank_ids(totals, wanted)[: latency.vocab_size]
    sizes = _allowed_sizes(ranked.size, wanted.size, k_min, k_max, multiple_of)
    coverage = running_coverage(totals, ranked, sizes)
    reduction = 1.0 - latency.costs(sizes) / latency.cost(latency.vocab_size)
    floors = [Floor(None, _check_share("min_coverage", min_coverage), coverage)]
    _check_reachable(floors[0], totals, ranked, sizes)
    for domain, minimum in _floors_by_domain(counts.domains, domain_floors).items():
        counted = counts.array(part="search", domain=domain)
        floor = Floor(domain, minimum, running_coverage(counted, ranked, sizes))
        _check_reachable(floor, counted, ranked, sizes)
        if minimum > 0:
            floors.append(floor)
    return SearchSpace(
        ranked=ranked,
        required=wanted.size,
        sizes=sizes,
        coverage=coverage,
        reduction=reduction,
        utility=alpha * coverage + (1.0 - alpha) * reduction,
        floors=tuple(floors),
        step=multiple_of,
    )


def with_whole_head(space: SearchSpace, counts: Any, latency: LatencyModel) -> SearchSpace:
    """Return the space with the head that has a row for every id as its last size.

    It is weighed by no utility, so that of the new space is nan there.
    """
    width = min(counts.vocab_size, latency.vocab_size)
    if space.sizes[-1] == width:
        return space
    others = np.setdiff1d(np.arange(counts.vocab_size), space.ranked)
    ranked = np.concatenate([space.ranked, others])[:width]
    sizes = np.append(space.sizes, width)

    def covered(domain: str | None) -> np.ndarray:
        return running_coverage(counts.array(part="search", domain=domain), ranked, sizes)

    return replace(
        space,
        ranked=ranked,
        sizes=sizes,
        coverage=covered(None),
        reduction=1.0 - latency.costs(sizes) / latency.cost(latency.vocab_size),
        utility=np.append(space.utility, np.nan),
        floors=tuple(replace(floor, coverage=covered(floor.domain)) for floor in space.floors),
    )


def running_coverage(counted: np.ndarray, ranked: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return the share of the counted tokens that the first k ranked ids cover, for each size k.

    Args:
        counted: int64 [V].
        ranked: int64 [n], ids by need.
        sizes: int64 [sizes], at most n; of larger ones, which no search has, all n count.

    Returns:
        float64 [sizes], all nan if nothing was counted.
    """
    total = int(counted.sum())
    if total == 0:
        return np.full(sizes.shape, np.nan)
    running = np.cumsum(counted[ranked])
    return np.asarray(running[np.minimum(sizes, ranked.size) - 1] / total)


def _allowed_sizes(
    ranked: int, required: int, k_min: int, k_max: int | None, multiple_of: int
) -> np.ndarray:
    """List the sizes from `k_min` to `k_max` that keep all required ids and none uncounted."""
    if multiple_of < 1 or k_min < 1:
        raise ValueError(
            f"k_min and multiple_of must be at least 1, got {k_min} and {multiple_of}"
        )
    if k_max is not None and k_max < k_min:
        raise ValueError(f"k_max must not be below k_min={k_min}, got {k_max}")
    if k_max is not None and k_max < required:
        raise ValueError(
            f"k counts the {required} required tokens, so k_max must be at least {required}, got "
            f"{k_max}: raise it, or require fewer (RequiredTokens.without)"
        )
    high = ranked if k_max is None else min(k_max, ranked)
    low = max(min(k_min, ranked), required)
    first = -(-low // multiple_of) * multiple_of
    sizes = np.arange(first, high + 1, multiple_of, dtype=np.int64)
    if not sizes.size:
        raise ValueError(
            f"no multiple of {multiple_of} lies between {low} and {high} (of {ranked} tokens that "
            "were counted or required): choose a smaller multiple_of, or another k_min and k_max"
        )
    return sizes


def _floors_by_domain(
    domains: tuple[str, ...], floors: float | Mapping[str, float] | None
) -> dict[str, float]:
    if floors is None:
        return {}
    if not isinstance(floors, Mapping):
        floors = dict.fromkeys(domains, floors)
    for domain in floors:
        if domain not in domains:
            raise ValueError(
                f"domain_floors names the domain {domain!r}, but what was counted is "
                f"{', '.join(map(repr, domains))}"
            )
    return {d: _check_share(f"the floor of domain {d!r}", float(v)) for d, v in floors.items()}


def _check_share(name: str, value: float) -> float:
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} must lie in [0, 1], got {value}")
    return float(value)


def _check_reachable(
    floor: Floor, counted: np.ndarray, ranked: np.ndarray, sizes: np.ndarray
) -> None:
    """Raise an error that names the floor, the nearest coverage and its size, if none meets it."""
    if floor.minimum == 0 or floor.met.any():
        return
    name = "min_coverage" if floor.domain is None else f"the floor of domain {floor.domain!r}"
    if not counted.any():
        raise ValueError(f"{name}={floor.minimum} cannot be met: its search part has no tokens")
    nearest = int(np.argmax(floor.coverage))
    every = np.arange(1, ranked.size + 1)
    enough = running_coverage(counted, ranked, every) >= floor.minimum - _ROUNDING
    way_out = (
        f"it takes k={int(np.argmax(enough)) + 1}: raise k_max, or lower multiple_of"
        if enough.any()
        else "no size covers more: lower it"
    )
    raise ValueError(
        f"{name}={floor.minimum} cannot be met by {sizes[0]} to {sizes[-1]} tokens: the nearest "
        f"coverage is {floor.coverage[nearest]:.6f}, at k={sizes[nearest]}; {way_out}"
    )
