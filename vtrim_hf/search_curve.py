"""The figures of every size that a search weighed, as one curve with its front."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

_POINTS = 200


class FrontPoint(NamedTuple):
    """A size that no other size beats both in coverage and in what it saves."""

    k: int
    coverage: float
    reduction: float


@dataclass(frozen=True, eq=False)
class SearchCurve:
    """The figures of every size that was allowed; after loading, of about 200 of them.

    Attributes:
        sizes: int64 [sizes], ascending.
        coverage: float64 [sizes], of the search part.
        heldout_coverage: float64 [sizes], or None if nothing was held out.
        reduction: float64 [sizes], R(k).
        utility: float64 [sizes], U(k), or the expected speed-up with the best draft length.
        feasible: bool [sizes], whether all floors are met.
        domain_coverage: float64 [sizes] of the search part for each domain, if there are several.
        heldout_utility: float64 [sizes], expected speed-ups with the held-out part's coverage;
            None for another objective, or if nothing was held out.
    """

    sizes: np.ndarray
    coverage: np.ndarray
    heldout_coverage: np.ndarray | None
    reduction: np.ndarray
    utility: np.ndarray
    feasible: np.ndarray
    domain_coverage: Mapping[str, np.ndarray] = field(default_factory=dict)
    heldout_utility: np.ndarray | None = None

    def front(self) -> np.ndarray:
        """Return the positions that are not dominated in coverage and reduction, ascending."""
        # Coverage never falls along the sizes and reduction never rises, so among equal reductions
        # the last size covers most, and among equal coverages the first one saves most.
        last = np.searchsorted(-self.reduction, -self.reduction, side="right") - 1
        first = np.searchsorted(self.coverage, self.coverage, side="left")
        best = (self.coverage == self.coverage[last]) & (self.reduction == self.reduction[first])
        same = np.maximum(first, np.searchsorted(-self.reduction, -self.reduction, side="left"))
        return np.flatnonzero(best & (same == np.arange(self.sizes.size)))

    def at(self, positions: np.ndarray) -> SearchCurve:
        """Return the curve at some of its sizes."""
        return SearchCurve(
            self.sizes[positions],
            self.coverage[positions],
            None if self.heldout_coverage is None else self.heldout_coverage[positions],
            self.reduction[positions],
            self.utility[positions],
            self.feasible[positions],
            {domain: values[positions] for domain, values in self.domain_coverage.items()},
            None if self.heldout_utility is None else self.heldout_utility[positions],
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the curve as plain JSON types."""
        held, worth = self.heldout_coverage, self.heldout_utility
        return {
            "sizes": self.sizes.tolist(),
            "coverage": self.coverage.tolist(),
            "heldout_coverage": None if held is None else held.tolist(),
            "reduction": self.reduction.tolist(),
            "utility": self.utility.tolist(),
            "feasible": self.feasible.tolist(),
            "domain_coverage": {d: values.tolist() for d, values in self.domain_coverage.items()},
            **({} if worth is None else {"heldout_utility": worth.tolist()}),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> SearchCurve:
        """Read what `to_dict` gave."""
        held, worth = data["heldout_coverage"], data.get("heldout_utility")
        return cls(
            np.asarray(data["sizes"], dtype=np.int64),
            np.asarray(data["coverage"], dtype=np.float64),
            None if held is None else np.asarray(held, dtype=np.float64),
            np.asarray(data["reduction"], dtype=np.float64),
            np.asarray(data["utility"], dtype=np.float64),
            np.asarray(data["feasible"], dtype=bool),
            {d: np.asarray(v, dtype=np.float64) for d, v in data["domain_coverage"].items()},
            None if worth is None else np.asarray(worth, dtype=np.float64),
        )


def thinned(positions: np.ndarray, chosen: int, limit: int = _POINTS) -> np.ndarray:
    """Keep at most `limit` positions, denser where they are small; both ends and `chosen` stay."""
    if positions.size <= limit:
        return positions
    kept = np.round(np.geomspace(1, positions.size, limit - 1)).astype(np.int64) - 1
    kept = positions[np.unique(kept)]
    return np.unique(np.append(kept, chosen)) if chosen in positions else kept
