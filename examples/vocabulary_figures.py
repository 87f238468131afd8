"""The figures of a target's vocabularies: searched with every setting, judged on other data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from paper_figures import PAPER_ALPHA, PAPER_FLOOR
from vocabulary_rivals import TextCounts, rival_vocabularies
from vocabulary_targets import Target

from vtrim_hf import TokenCounts, search_vocabulary
from vtrim_hf.vocabulary import rank_ids

ALPHAS = (0.3, 0.5, 0.7, 0.9)
FLOORS = (0.0, 0.95, 0.97, 0.99)


def covered(counts: TokenCounts | None, ids: Any, part: str) -> dict[str, Any] | None:
    """Return which share of a part a vocabulary covers, with its 95 % interval."""
    if counts is None or not counts.total(part):
        return None
    low, high = counts.coverage_interval(ids, part)
    return {"coverage": counts.coverage(ids, part), "low": low, "high": high}


def figures_of(
    found: Any, counts: TokenCounts, test: TokenCounts | None, **more: Any
) -> dict[str, Any]:
    """Return what a table shows of a vocabulary that a search chose."""
    return {
        "k": found.k,
        "reduction": found.reduction,
        "utility": found.utility,
        "gap_to_exact": found.gap_to_exact,
        "search": covered(counts, found.vocabulary, "search"),
        "heldout": covered(counts, found.vocabulary, "heldout"),
        "test": covered(test, found.vocabulary, "all"),
        **more,
    }


def grid(
    counts: TokenCounts, test: TokenCounts | None, target: Target, trials: int
) -> list[dict[str, Any]]:
    """Search with every weight and least coverage, exactly and as the paper does."""
    cells = []
    for alpha in ALPHAS:
        for floor in FLOORS:
            how = {"alpha": alpha, "min_coverage": floor, "required": target.required}
            exact = search_vocabulary(counts, target.latency, **how)
            tpe = search_vocabulary(
                counts, target.latency, **how, method="tpe", trials=trials, progress=False
            )
            cells.append(
                {
                    "alpha": alpha,
                    "min_coverage": floor,
                    "exact": figures_of(exact, counts, test),
                    "tpe": figures_of(tpe, counts, test, distinct=tpe.study["distinct_sizes"]),
                }
            )
    return cells


def best(counts: TokenCounts, target: Target) -> Any:
    """Search with the paper's weight and no least coverage, required ids being part of k."""
    return search_vocabulary(
        counts,
        target.latency,
        alpha=PAPER_ALPHA,
        min_coverage=PAPER_FLOOR,
        required=target.required,
    )


def ways(
    counts: TokenCounts,
    test: TokenCounts | None,
    texts: TextCounts,
    raw: np.ndarray,
    general: np.ndarray | None,
    target: Target,
) -> dict[str, Any]:
    """Choose vocabularies as others do, of the same conversations, and judge all alike.

    Args:
        counts: what the assistant says in this domain.
        test: the same of its test data.
        texts: what others count of the same conversations.
        raw: int64 [V], raw text of all domains.
        general: int64 [V], what the assistant says in the domain `general`.
        target: whose ids they are.
    """
    found = best(counts, target)
    chosen = {"vtrim": np.asarray(found.vocabulary.ids)}
    chosen |= rival_vocabularies(counts.array("search"), found.k, texts, raw, general, target)
    required = set(target.required)
    return {
        name: {
            "k": int(ids.size),
            "reduction": target.latency.reduction(int(ids.size)),
            "required_missing": len(required.difference(ids.tolist())),
            "heldout": covered(counts, ids, "heldout"),
            "test": covered(test, ids, "all"),
        }
        for name, ids in chosen.items()
    }


def sayable(counted: np.ndarray, target: Target) -> int:
    """Return how many ids were counted or are required: no vocabulary is larger."""
    return int(rank_ids(counted, target.required.ids).size)


def paper_run(
    counts: TokenCounts, test: TokenCounts | None, target: Target, trials: int
) -> dict[str, Any]:
    """Search as the paper's published run does: no required ids, 50 to 50,000 tokens."""
    exact = search_vocabulary(
        counts, target.latency, alpha=PAPER_ALPHA, k_max=50_000, multiple_of=1
    )
    tpe = search_vocabulary(counts, target.latency, preset="paper", trials=trials, progress=False)
    return {
        "exact": figures_of(exact, counts, test),
        "tpe": figures_of(tpe, counts, test, distinct=tpe.study["distinct_sizes"]),
    }


def crossed(
    counts: Mapping[str, TokenCounts], ood: Mapping[str, TokenCounts], target: Target
) -> dict[str, Any]:
    """Return what each domain's vocabulary covers of every domain and ood set."""
    rows: dict[str, Any] = {}
    for name, own in counts.items():
        found = best(own, target)
        on = {other: covered(data, found.vocabulary, "heldout") for other, data in counts.items()}
        far = {other: covered(data, found.vocabulary, "all") for other, data in ood.items()}
        rows[name] = {"k": found.k, "domains": on, "ood": far}
        if ood:
            tokens = {other: data.total("all") for other, data in ood.items()}
            share = sum(far[other]["coverage"] * tokens[other] for other in ood)
            rows[name]["ood_weighted"] = share / sum(tokens.values())
    return rows
