"""What a published draft tells of a `SearchResult` and of the counts that it was made from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .search_result import SearchResult

PARTS = ("search", "heldout")
"""Parts of the counted data: the one that chose the vocabulary, and the one that judges it."""

_MISSED = 20
_SAME_NAME = (
    "objective",
    "preset",
    "alpha",
    "min_coverage",
    "domain_floors",
    "k_min",
    "k_max",
    "multiple_of",
    "trials",
    "seed",
)


def search_facts(search: SearchResult) -> dict[str, Any]:
    """Return how the size was chosen; unknown facts are None."""
    settings = search.settings
    latency = settings.get("latency", {})
    return {
        "method": search.method,
        **{name: settings.get(name) for name in _SAME_NAME},
        "latency": latency.get("kind")
        and {
            "kind": latency["kind"],
            "unit": latency.get("unit"),
            "body": latency.get("settings", {}).get("body"),
        },
        "utility": search.utility,
        "reduction": search.reduction,
        "gap_to_exact": search.gap_to_exact,
        "counts_fingerprint": settings.get("counts"),
        "usual": search.usual
        and dict(zip(("k", "coverage", "reduction"), search.usual, strict=True)),
    }


def coverage_facts(search: SearchResult, counts: Any) -> dict[str, Any]:
    """Return what is covered, of all data and by domain; unknown facts are None.

    Args:
        search: the result.
        counts: the `TokenCounts` that were searched, for numbers of conversations; or None.
    """

    def part(name: str, domain: str | None) -> dict[str, Any] | None:
        prefix = "" if name == "search" else "heldout_"
        if domain is None:
            share = getattr(search, f"{prefix}coverage")
            interval = getattr(search, "heldout_interval" if prefix else "coverage_interval")
            tokens = sum(facts[f"{prefix}tokens"] for facts in search.per_domain.values())
        else:
            facts = search.per_domain[domain]
            share, interval = facts[f"{prefix}coverage"], facts[f"{prefix}interval"]
            tokens = facts[f"{prefix}tokens"]
        known = None if counts is None else counts.conversations(name, domain)
        if share is None:
            return None
        # Sums and quotients of floats may end a hair above 1.
        held = {
            "share": min(1.0, share),
            "interval": interval and [min(1.0, end) for end in interval],
            "tokens": tokens or None,
        }
        return held | {"conversations": known or None}

    return {
        **{name: part(name, None) for name in PARTS},
        "domains": {
            domain: {
                **{name: part(name, domain) for name in PARTS},
                "floor": facts["floor"],
                "weak": facts["weak"],
            }
            for domain, facts in search.per_domain.items()
        },
    }


def missed_in_counts(counts: Any, draft_or_config: Any, tokenizer: Any) -> dict[str, Any] | None:
    """Return the most frequent tokens that the draft cannot say, of the held-out part if any."""
    vocabulary = getattr(draft_or_config, "vocabulary", None)
    if vocabulary is None:
        return None  # a config does not hold the ids
    part = "heldout" if counts.total("heldout") else "search"
    array = counts.array(part)
    total = int(array.sum())
    array[vocabulary.ids.numpy()] = 0
    order = (-array).argsort(kind="stable")[:_MISSED]
    return {
        "of": part,
        "tokens": [
            {
                "id": int(index),
                "count": int(array[index]),
                "share": int(array[index]) / total,
                "text": None if tokenizer is None else tokenizer.decode([int(index)])[:200],
            }
            for index in order
            if array[index]
        ],
    }
