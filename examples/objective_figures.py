"""What bench_objective.py makes of its measurements: figures of a domain, and of several."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vtrim_hf import DecodeReport

RESAMPLES = 2000
USUAL = "utility 0.5"  # the default of search_vocabulary, as in the paper's runs

# --- one domain ------------------------------------------------------------------------------


def figures_of(
    report: DecodeReport,
    first: DecodeReport,
    names: Mapping[int, str],
    curve: tuple[np.ndarray, np.ndarray],
    choices: Mapping[str, Any],
    values: Mapping[str, Sequence[float]],
) -> dict[str, Any]:
    """Return all figures of a domain as JSON values.

    Args:
        report: every size on the test prompts.
        first: the trained draft on the prompts of the search part.
        names: of the sizes in the report.
        curve: the sweep's sizes, and what they cover of the counts.
        choices: by objective; "k" and the size that was "measured_at" for it.
        values: by objective, what it says each of the sweep's sizes is worth.
    """
    sizes = curve[0].tolist()
    speeds = {
        str(size): [_speed(row, name) for row in report.rows] for size, name in names.items()
    }
    best = best_of(speeds)
    rows = {}
    for size, name in names.items():
        entry = report.entries[name]
        rows[size] = {
            "k": size,
            "in_sweep": size in sizes,
            "tokens_per_second": entry.tokens_per_second,
            "over_plain": vars(entry.speedup),
            "of_best": vars(report.ratio(name, names[best])),
            "acceptance_length": entry.acceptance_length,
            "draft_ms": entry.draft_step_ms,
        }
    usual = names[choices[USUAL]["measured_at"]]
    judged = {}
    for name, choice in choices.items():
        row = rows[choice["measured_at"]]
        judged[name] = {
            **choice,
            "over_plain": row["over_plain"],
            "of_best": row["of_best"],
            "inside_the_spread": row["of_best"]["high"] >= 1,
            "over_usual": vars(report.ratio(names[choice["measured_at"]], usual)),
        }
    speedups = np.array(
        [
            [_speed(row, names[size]) / _speed(row, report.baseline) for size in sizes]
            for row in report.rows
        ]
    )
    return {
        "best": best,
        "baseline": report.baseline,
        "plain_tokens_per_second": report.plain.tokens_per_second,
        "measured": [rows[size] for size in sorted(rows)],
        "speeds": speeds,
        "sweep": sizes,
        "sweep_covers_of_counts": curve[1].tolist(),
        "predicted": {name: [*one] for name, one in values.items()},
        "rank_correlation": {name: rank_correlation(v, speedups) for name, v in values.items()},
        "choices": judged,
        "compared": compared({"": {"choices": judged, "speeds": speeds}}),
        "trained_draft": {
            where: {
                "acceptance_length": one.draft.acceptance_length,
                "covers_of_the_targets_answers": 1 - (one.draft.oov_share or 0),
                "speedup": one.speedup,
            }
            for where, one in (("search", first), ("test", report))
        },
    }


def best_of(speeds: Mapping[str, Sequence[float]]) -> int:
    """Return the size that no other beats, prompt by prompt.

    The size with the highest median over plain need not be it: paired with another, over the same
    prompts, it can be the slower one. Where each is beaten by some other, as can happen with
    medians, it is the one that is beaten by least.

    Args:
        speeds: tokens/s of each prompt, by size.
    """
    table = np.array([*speeds.values()])
    beaten_by = np.median(table[:, None] / table[None], axis=-1).max(axis=0)
    return int([*speeds][int(beaten_by.argmin())])


def _speed(row: Mapping[str, Any], name: str) -> float:
    cell = row["entries"][name]
    return float(cell["tokens"] / cell["seconds"])


def rank_correlation(predicted: Sequence[float], speedups: np.ndarray) -> dict[str, float]:
    """Return Spearman's rho of a prediction and the measured medians, with its 95 % interval.

    Args:
        predicted: a value a size.
        speedups: float64 [prompts, sizes]; it is the prompts that are drawn anew.
    """
    medians = np.median(speedups[_draws(len(speedups))], axis=1)
    rhos = _ranks(medians) @ _ranks(np.asarray(predicted, dtype=np.float64))
    low, high = np.percentile(rhos, [2.5, 97.5])
    return {"rho": float(rhos[0]), "low": float(low), "high": float(high)}


def _draws(prompts: int, seed: int = 0) -> np.ndarray:
    """Return prompts drawn anew, int64 [resamples, prompts]; the first has each once."""
    draws = np.random.default_rng(seed).integers(prompts, size=(RESAMPLES, prompts))
    draws[0] = np.arange(prompts)
    return draws


def _ranks(values: np.ndarray) -> np.ndarray:
    """Return ranks along the last axis, around 0 and of length 1; equal values share theirs."""
    others = values[..., None, :]
    ranks = (values[..., None] > others).sum(-1) + (values[..., None] == others).sum(-1) / 2
    ranks -= ranks.mean(-1, keepdims=True)
    return np.asarray(ranks / np.maximum(np.linalg.norm(ranks, axis=-1, keepdims=True), 1e-12))


# --- several domains -------------------------------------------------------------------------


def compared(domains: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Say which objective chose the fastest sizes, and which others cannot be told from it.

    A ratio is the median over the prompts of a domain; of several domains, the geometric mean.
    For intervals the prompts of each domain are drawn anew; the domains stay.

    Args:
        domains: figures by domain, of which `choices` and `speeds` are read.

    Returns:
        `recommended`, the objective with the highest ratio to the best size; `alike`, those whose
        interval over it reaches 1; and by objective both ratios. Of equal ones the first counts.
    """
    every = [*domains.values()]
    names = [name for name in every[0]["choices"] if all(name in one["choices"] for one in every)]
    of_best = {
        name: geometric_mean([one["choices"][name]["of_best"]["median"] for one in every])
        for name in names
    }
    first = max(names, key=lambda name: of_best[name])
    over = {name: _over(every, name, first) for name in names}
    return {
        "recommended": first,
        "alike": [name for name in names if name != first and over[name]["high"] >= 1],
        "objectives": {
            name: {"of_best": of_best[name], "over_recommended": over[name]} for name in names
        },
    }


def _over(domains: Sequence[Mapping[str, Any]], name: str, other: str) -> dict[str, float]:
    logs = []
    for place, one in enumerate(domains):
        mine, theirs = (
            np.array(one["speeds"][str(one["choices"][which]["measured_at"])])
            for which in (name, other)
        )
        logs.append(np.log(np.median((mine / theirs)[_draws(len(mine), place)], axis=1)))
    ratios = np.exp(np.mean(logs, axis=0))
    low, high = np.percentile(ratios, [2.5, 97.5])
    return {"median": float(ratios[0]), "low": float(low), "high": float(high)}


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean."""
    return math.exp(sum(map(math.log, values)) / len(values))


def summary_of(domains: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return what is told of all domains together, as JSON values.

    Args:
        domains: figures by domain, as `figures_of` gives them, and what was measured.
    """
    told = ("command", "draft", "trained_k", "best")
    choice = ("k", "measured_at", "over_plain", "of_best")
    every = [*domains.values()]
    predictions = [
        name
        for name in every[0]["rank_correlation"]
        if all(name in one["rank_correlation"] for one in every)
    ]
    return {
        "domains": {
            name: {
                **{part: one[part] for part in told},
                "machines": list(itertools.chain(*one["machines"].values())),
                "choices": {
                    objective: {part: made[part] for part in choice}
                    for objective, made in one["choices"].items()
                },
                "rank_correlation": one["rank_correlation"],
            }
            for name, one in domains.items()
        },
        "compared": compared(domains),
        "mean_rank_correlation": {
            name: sum(one["rank_correlation"][name]["rho"] for one in every) / len(every)
            for name in predictions
        },
    }
