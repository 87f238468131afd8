"""Counts and costs for the tests of the search, and of what its results become."""

from __future__ import annotations

from typing import Any

import numpy as np

from vtrim_hf.latency import LatencyModel
from vtrim_hf.search_space import SearchSpace, build_space
from vtrim_hf.token_counts import TokenCounts


def step(vocab_size: int, *, body: float = 2000.0, multiple_of: int = 1) -> LatencyModel:
    """A draft step that costs `body`, and 1 for each row of the head."""
    return LatencyModel(
        vocab_size,
        "flops",
        "FLOP",
        {"body": body},
        (0, vocab_size),
        (0.0, float(vocab_size)),
        multiple_of=multiple_of,
    )


def zipf(width: int = 5000, distinct: int = 3000, tokens: int = 200_000, seed: int = 0) -> Any:
    """Counts as text has them, int64 [width], on ids in no order."""
    rng = np.random.default_rng(seed)
    share = 1 / np.arange(1, distinct + 1)
    counts = np.zeros(width, dtype=np.int64)
    counts[rng.permutation(width)[:distinct]] = rng.multinomial(tokens, share / share.sum())
    return counts


def two_domains(sql: Any, chat: Any, **options: Any) -> TokenCounts:
    """Counts of the domains "sql" and "chat"."""
    return TokenCounts.merge(
        TokenCounts.from_counts(np.asarray(sql), domain="sql"),
        TokenCounts.from_counts(np.asarray(chat), domain="chat"),
        **options,
    )


def space_of(counts: Any, **options: Any) -> SearchSpace:
    """The space of some counts; all limits are open unless given."""
    if not isinstance(counts, TokenCounts):
        counts = TokenCounts.from_counts(np.asarray(counts))
    latency = options.pop("latency", None) or step(counts.vocab_size, body=10.0)
    defaults: dict[str, Any] = {
        "required": (),
        "alpha": 0.5,
        "min_coverage": 0.0,
        "domain_floors": None,
        "k_min": 1,
        "k_max": None,
        "multiple_of": 1,
    }
    return build_space(counts, latency, **{**defaults, **options})
