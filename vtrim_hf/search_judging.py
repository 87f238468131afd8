"""Judging a chosen size on data that did not choose it, and putting a `SearchResult` together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .latency import LatencyModel
from .search_curve import FrontPoint, SearchCurve, thinned
from .search_result import SearchResult
from .search_space import SearchSpace, running_coverage
from .search_throughput import Decision, with_interval
from .tpe_search import StudyOutcome
from .vocabulary import DraftVocabulary

_USUAL_SIZE = 32_000
_WEAK = 0.01


@dataclass(frozen=True, eq=False)
class Choice:
    """What a search settled on.

    Attributes:
        size: k.
        utility: its value of the objective.
        optimum: the best value that there is.
        outcome: of the study, if there was one.
        decision: what is expected of it, if the objective is throughput.
        heldout_utility: float64 [sizes], the objective on the held-out part, likewise.
    """

    size: int
    utility: float
    optimum: float
    outcome: StudyOutcome | None = None
    decision: Decision | None = None
    heldout_utility: np.ndarray | None = None


def judge(
    counts: Any,
    latency: LatencyModel,
    space: SearchSpace,
    choice: Choice,
    settings: dict[str, Any],
    decoding: Any = None,
) -> SearchResult:
    """Judge the chosen size and put everything together.

    Args:
        counts: the `TokenCounts` that were searched.
        latency: what a draft step costs.
        space: every size that might have been chosen.
        choice: what was chosen.
        settings: of the search, as they are kept.
        decoding: the `DecodingModel`, if the objective is throughput.
    """
    place = space.position(choice.size)
    curve = _curve(counts, space, choice.heldout_utility)
    held = curve.heldout_coverage
    heldout_coverage = None if held is None else float(held[place])
    drafting = {} if choice.decision is None else {"draft_length": choice.decision.draft_length}
    provenance = {
        "made_by": "search_vocabulary",
        **{name: settings[name] for name in settings if name != "latency"},
        "latency": {"kind": latency.kind, "unit": latency.unit, **latency.settings},
        "coverage": float(space.coverage[place]),
        "heldout_coverage": heldout_coverage,
        "reduction": float(space.reduction[place]),
        **drafting,
    }
    vocabulary = DraftVocabulary.from_ids(
        space.ranked[: choice.size],
        vocab_size=counts.vocab_size,
        tokenizer_hash=counts.tokenizer_hash,
        provenance=provenance,
    )
    front = curve.front()
    low, high = counts.coverage_interval(vocabulary, part="search")
    heldout_interval = _interval(counts, vocabulary, "heldout", None)
    expected = None
    if choice.decision is not None:
        expected = with_interval(
            choice.decision, decoding, latency, heldout_interval or (float(low), float(high))
        )
    optimum, outcome = choice.optimum, choice.outcome
    return SearchResult(
        k=choice.size,
        vocabulary=vocabulary,
        utility=choice.utility,
        coverage=float(space.coverage[place]),
        coverage_interval=(float(low), float(high)),
        heldout_coverage=heldout_coverage,
        heldout_interval=heldout_interval,
        per_domain=_per_domain(counts, vocabulary, settings["domain_floors"], heldout_coverage),
        reduction=float(space.reduction[place]),
        front=tuple(
            FrontPoint(int(curve.sizes[i]), float(curve.coverage[i]), float(curve.reduction[i]))
            for i in thinned(front, place)
        ),
        gap_to_exact=max(0.0, (optimum - choice.utility) / abs(optimum)) if optimum else 0.0,
        study=None if outcome is None else outcome.facts,
        method=settings["method"],
        settings=settings,
        curve=curve,
        usual=_usual_point(counts, latency, space),
        draft_length=drafting.get("draft_length"),
        expected=expected,
        optuna_study=None if outcome is None else outcome.study,
    )


def _curve(counts: Any, space: SearchSpace, heldout_utility: np.ndarray | None) -> SearchCurve:
    held = running_coverage(counts.array(part="heldout"), space.ranked, space.sizes)
    domains = counts.domains if len(counts.domains) > 1 else ()
    return SearchCurve(
        sizes=space.sizes,
        coverage=space.coverage,
        heldout_coverage=None if np.isnan(held).any() else held,
        reduction=space.reduction,
        utility=space.utility,
        feasible=space.feasible,
        domain_coverage={
            domain: running_coverage(
                counts.array(part="search", domain=domain), space.ranked, space.sizes
            )
            for domain in domains
            if counts.total(part="search", domain=domain)
        },
        heldout_utility=heldout_utility,
    )


def _usual_point(counts: Any, latency: LatencyModel, space: SearchSpace) -> FrontPoint | None:
    """Return where the usual 32,000 most frequent tokens lie, if the target has that many."""
    if latency.vocab_size < _USUAL_SIZE:
        return None
    coverage = running_coverage(counts.array("search"), space.ranked, np.asarray([_USUAL_SIZE]))
    return FrontPoint(_USUAL_SIZE, float(coverage[0]), latency.reduction(_USUAL_SIZE))


def _per_domain(
    counts: Any,
    vocabulary: DraftVocabulary,
    floors: Mapping[str, float],
    heldout_coverage: float | None,
) -> dict[str, dict[str, Any]]:
    """Judge the vocabulary domain by domain, and mark the domains that it serves badly."""
    part = "search" if heldout_coverage is None else "heldout"
    whole = counts.coverage(vocabulary, part=part)
    report: dict[str, dict[str, Any]] = {}
    for domain in counts.domains:
        facts: dict[str, Any] = {"floor": floors.get(domain)}
        for name, prefix in (("search", ""), ("heldout", "heldout_")):
            total = int(counts.total(part=name, domain=domain))
            covered = float(counts.coverage(vocabulary, part=name, domain=domain))
            facts[f"{prefix}tokens"] = total
            facts[f"{prefix}coverage"] = covered if total else None
            facts[f"{prefix}interval"] = _interval(counts, vocabulary, name, domain)
        judged = facts["heldout_coverage"] if facts["heldout_tokens"] else facts["coverage"]
        least = max(whole - _WEAK, floors.get(domain, 0.0))
        facts["weak"] = judged is not None and judged < least
        report[domain] = facts
    return report


def _interval(
    counts: Any, vocabulary: DraftVocabulary, part: str, domain: str | None
) -> tuple[float, float] | None:
    if not counts.total(part=part, domain=domain):
        return None
    low, high = counts.coverage_interval(vocabulary, part=part, domain=domain)
    return float(low), float(high)
