"""Putting domains together: which counts belong to each other, and what their weights mean."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from .counted_blocks import DomainCounts


class Counted(Protocol):
    """What is asked of a `TokenCounts` here."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def tokenizer_hash(self) -> str | None: ...
    @property
    def template_hash(self) -> str | None: ...
    @property
    def settings(self) -> Mapping[str, Any]: ...
    @property
    def weights(self) -> Mapping[str, float]: ...
    @property
    def _counts(self) -> Mapping[str, DomainCounts]: ...


Merged = tuple[dict[str, DomainCounts], dict[str, float], dict[str, Any]]


def merged_domains(
    counts: Sequence[Counted], weights: Sequence[float] | Mapping[str, float] | None
) -> Merged:
    """Put the domains of several counts side by side, summing those that are the same.

    Returns:
        By domain: counts, weights, and what is known of the data.

    Raises:
        ValueError: as `TokenCounts.merge` documents.
    """
    _check_alike(counts)
    by_position = weights if weights is not None and not isinstance(weights, Mapping) else None
    if by_position is not None and len(by_position) != len(counts):
        raise ValueError(
            f"merge needs one weight for each of the {len(counts)} counts, got {len(by_position)}"
        )
    domains: dict[str, DomainCounts] = {}
    weight_of: dict[str, float] = {}
    facts: dict[str, Any] = {}
    names: dict[tuple[str, float], str] = {}
    for position, part in enumerate(counts):
        factor = 1.0 if by_position is None else _checked_weight(by_position[position])
        for name, own in part._counts.items():
            weight = part.weights[name] * factor
            known = dict(part.settings.get("domains", {}).get(name, {}))
            kept = names.get((name, weight))
            if kept is None:
                kept = names[name, weight] = _unused(name, domains)
                domains[kept], weight_of[kept], facts[kept] = own, weight, known
            else:
                domains[kept] = domains[kept].added(own)
                facts[kept] = _added_facts(facts[kept], known)
    if isinstance(weights, Mapping):
        if set(weights) != set(domains):
            raise ValueError(
                f"weights must name each domain ({', '.join(domains)}) once, got "
                f"{', '.join(map(str, weights)) or 'none'}"
            )
        weight_of = {name: _checked_weight(weights[name]) for name in domains}
    if not any(weight_of.values()):
        raise ValueError("at least one weight must be positive")
    return domains, weight_of, facts


def checked_array(array: Any, what: str) -> np.ndarray:
    """Take whole numbers [V] from an array, list or tensor."""
    given = np.asarray(array)
    if given.ndim != 1 or given.size == 0 or given.dtype.kind not in "iu":
        raise ValueError(
            f"{what} must be whole numbers of shape [V], got {given.dtype} {list(given.shape)}"
        )
    if given.min() < 0:
        raise ValueError(
            f"{what} must not be negative, got {given.min()} for id {int(given.argmin())}"
        )
    return given.astype(np.int64)


def _check_alike(counts: Sequence[Counted]) -> None:
    if not counts:
        raise ValueError("merge needs at least one TokenCounts")
    for what in ("vocab_size", "tokenizer_hash", "template_hash"):
        values = {getattr(part, what) for part in counts} - {None}
        if len(values) > 1:
            shown = ", ".join(sorted(str(value)[:12] for value in values))
            raise ValueError(
                f"only counts of one {what} can be merged, got {shown}: count all of them with "
                "the target's own tokenizer and width"
            )
    blocks = {c.blocks for part in counts for c in part._counts.values() if c.hashed}
    if len(blocks) > 1:
        raise ValueError(
            f"only counts with the same number of blocks can be merged, got {sorted(blocks)}"
        )


def _checked_weight(weight: float) -> float:
    value = float(weight)
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"a weight must be a finite number from 0 on, got {weight}")
    return value


def _unused(name: str, taken: Mapping[str, Any]) -> str:
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name} ({number})"
    return free


def _added_facts(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Add up the numbers of two shards; their sums of hashes make that of all the data."""
    if "rows" not in first or "rows" not in second:
        return {**second, **first}
    added = dict(first)
    for key in ("rows", "skipped", "without_assistant"):
        added[key] = first[key] + second[key]
    for key in ("shapes", "tokens"):
        names = [*first[key], *(n for n in second[key] if n not in first[key])]
        added[key] = {n: first[key].get(n, 0) + second[key].get(n, 0) for n in names}
    total = int(first["data_fingerprint"], 16) + int(second["data_fingerprint"], 16)
    added["data_fingerprint"] = f"{total % (1 << 256):064x}"
    return added
