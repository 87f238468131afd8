"""Choosing a draft vocabulary: how many tokens, and which, for one domain and one cost.

    maximise U(k) = alpha * C(k) + (1 - alpha) * R(k)   subject to   C(k) >= min_coverage

C(k) is the share of the counted tokens that the k most needed ids hold, R(k) the share of a draft
step's cost that a head of k rows saves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np

from .kept_ids import whole_ids
from .latency import LatencyModel
from .search_curve import FrontPoint, SearchCurve, thinned
from .search_result import SearchResult
from .search_space import SearchSpace, build_space, running_coverage
from .tpe_search import StudyOutcome, run_study
from .vocabulary import DraftVocabulary

OBJECTIVES = ("utility",)
METHODS = ("exact", "tpe")

# What the paper's published run fixes (arXiv 2603.05210); it also has no required ids, and its
# search is TPE with 100 trials and the seed 42, which are the defaults here.
_PAPER: Mapping[str, Any] = {"alpha": 0.5, "k_min": 50, "k_max": 50_000, "multiple_of": 1}
_DEFAULTS: Mapping[str, Any] = {"alpha": 0.5, "k_min": 50, "k_max": None, "multiple_of": None}

_USUAL_SIZE = 32_000
_WEAK = 0.01


def search_vocabulary(
    counts: Any,
    latency: LatencyModel,
    *,
    required: Iterable[int] = (),
    alpha: float = 0.5,
    min_coverage: float = 0.0,
    domain_floors: float | Mapping[str, float] | None = None,
    k_min: int = 50,
    k_max: int | None = None,
    multiple_of: int | None = None,
    method: Literal["exact", "tpe"] | None = None,
    preset: Literal["paper"] | None = None,
    objective: str = "utility",
    trials: int = 100,
    seed: int = 42,
    storage: Any = None,
    study_name: str = "vtrim",
    progress: bool = True,
) -> SearchResult:
    """Choose the vocabulary of the draft.

    Ids are ranked once, required ones first, then by count. `exact` computes the utility of every
    allowed size and takes the best, which is the optimum for this ranking. `tpe` is the paper's
    search with Optuna (`run_study`); its result says how far it stays behind the exact one.

    Args:
        counts: a `TokenCounts`. Its search part chooses; its held-out part judges.
        latency: what a draft step costs, for a vocabulary of the same target.
        required: ids that must stay, such as `required_token_ids(...)`; they are part of k.
        alpha: weight of coverage against the saving, in [0, 1].
        min_coverage: least coverage of all data, in [0, 1].
        domain_floors: least coverage of each domain: one number for all, or by name.
        k_min: smallest size; lowered to the number of counted and required ids if that is less.
        k_max: largest size; by default, and at most, all ids that were counted or required.
        multiple_of: sizes to choose from are multiples of this; by default the latency model's
            own, which is 64 for a GPU and 1 otherwise.
        method: "exact" or "tpe"; by default "exact", and "tpe" with the preset.
        preset: "paper" for alpha 0.5, k in [50, 50000], any size, no required ids, and TPE.
        objective: what is maximised: "utility".
        trials: trials that TPE adds to its study, new or stored.
        seed: of TPE.
        storage: where TPE keeps its study: an Optuna URL such as `sqlite:///study.db`, or a
            storage object. It goes on where it stopped; other data or settings start another.
        study_name: what the study's name begins with; a hash of data and settings follows.
        progress: show a bar for TPE.

    Returns:
        The vocabulary with its figures.

    Raises:
        ValueError: if an argument is out of range or contradicts the preset, if `k_max` leaves no
            room for the required ids, or if no allowed size meets a floor: the text names the
            floor, the nearest coverage that can be had, and at which size.

    Example:
        ```python
        counts = TokenCounts.from_dataset({"sql": "sql.jsonl", "chat": "chat.jsonl"}, tokenizer)
        latency = LatencyModel.eagle3(target.config)
        required = required_token_ids(tokenizer, target.generation_config)
        result = search_vocabulary(counts, latency, required=required, min_coverage=0.97)
        print(result.k, result.coverage, result.heldout_coverage, result.reduction)
        result.plot("search.png")
        ```
    """
    if objective not in OBJECTIVES:
        raise ValueError(f"objective must be one of {', '.join(OBJECTIVES)}, got {objective!r}")
    limits: dict[str, Any] = {
        "alpha": float(alpha),
        "k_min": int(k_min),
        "k_max": None if k_max is None else int(k_max),
        "multiple_of": None if multiple_of is None else int(multiple_of),
    }
    reasons = {name: len(ids) for name, ids in getattr(required, "by_reason", {}).items()}
    wanted = tuple(whole_ids(required, "required ids").unique().tolist())
    if preset is not None:
        limits = _with_preset(preset, limits, wanted)
        method = method or "tpe"
    method = method or "exact"
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    if limits["multiple_of"] is None:
        limits["multiple_of"] = latency.multiple_of
    space = build_space(
        counts,
        latency,
        required=wanted,
        min_coverage=min_coverage,
        domain_floors=domain_floors,
        **limits,
    )
    floors = {floor.domain: floor.minimum for floor in space.floors if floor.domain is not None}
    problem = {
        "objective": objective,
        **limits,
        "min_coverage": float(min_coverage),
        "domain_floors": floors,
        "sizes": [int(space.sizes[0]), int(space.sizes[-1])],
        "required": wanted,
        "counts": counts.fingerprint,
        "latency": latency.to_dict(),
    }
    best = space.best_size()
    outcome: StudyOutcome | None = None
    if method == "tpe":
        outcome = run_study(
            space,
            lambda size: float(space.utility[space.position(size)]),
            problem,
            trials=trials,
            seed=seed,
            storage=storage,
            study_name=study_name,
            progress=progress,
        )
    size = best if outcome is None else outcome.size
    settings = {
        **problem,
        "required": {"number": len(wanted), "by_reason": reasons},
        "method": method,
        "preset": preset,
        "domains": list(counts.domains),
        "exact_for": "one ranking of the ids: required first, then by count, ties by id",
    }
    if outcome is not None:
        settings |= {"trials": trials, "seed": seed}
    return _result(counts, latency, space, size, best, outcome, settings)


def _with_preset(
    preset: str, limits: Mapping[str, Any], required: tuple[int, ...]
) -> dict[str, Any]:
    """Return the preset's limits, if none was given that contradicts them."""
    if preset != "paper":
        raise ValueError(f"preset must be 'paper' or None, got {preset!r}")
    if required:
        raise ValueError(
            f"the preset 'paper' has no required ids, got {len(required)}: leave out either one"
        )
    for name, value in limits.items():
        if value not in (_DEFAULTS[name], _PAPER[name]):
            raise ValueError(
                f"the preset 'paper' sets {name}={_PAPER[name]}, got {value}: leave out either one"
            )
    return dict(_PAPER)


def _result(
    counts: Any,
    latency: LatencyModel,
    space: SearchSpace,
    size: int,
    best: int,
    outcome: StudyOutcome | None,
    settings: dict[str, Any],
) -> SearchResult:
    """Judge the chosen size and put everything together."""
    place = space.position(size)
    curve = _curve(counts, space)
    utility = float(space.utility[place])
    optimum = float(space.utility[space.position(best)])
    held = curve.heldout_coverage
    heldout_coverage = None if held is None else float(held[place])
    provenance = {
        "made_by": "search_vocabulary",
        **{name: settings[name] for name in settings if name != "latency"},
        "latency": {"kind": latency.kind, "unit": latency.unit, **latency.settings},
        "coverage": float(space.coverage[place]),
        "heldout_coverage": heldout_coverage,
        "reduction": float(space.reduction[place]),
    }
    vocabulary = DraftVocabulary.from_ids(
        space.ranked[:size],
        vocab_size=counts.vocab_size,
        tokenizer_hash=counts.tokenizer_hash,
        provenance=provenance,
    )
    front = curve.front()
    interval = counts.coverage_interval(vocabulary, part="search")
    return SearchResult(
        k=size,
        vocabulary=vocabulary,
        utility=utility,
        coverage=float(space.coverage[place]),
        coverage_interval=(float(interval[0]), float(interval[1])),
        heldout_coverage=heldout_coverage,
        heldout_interval=_interval(counts, vocabulary, "heldout", None),
        per_domain=_per_domain(counts, vocabulary, settings["domain_floors"], heldout_coverage),
        reduction=float(space.reduction[place]),
        front=tuple(
            FrontPoint(int(curve.sizes[i]), float(curve.coverage[i]), float(curve.reduction[i]))
            for i in thinned(front, place)
        ),
        gap_to_exact=max(0.0, (optimum - utility) / abs(optimum)) if optimum else 0.0,
        study=None if outcome is None else outcome.facts,
        method=settings["method"],
        settings=settings,
        curve=curve,
        usual=_usual_point(counts, latency, space),
        optuna_study=None if outcome is None else outcome.study,
    )


def _curve(counts: Any, space: SearchSpace) -> SearchCurve:
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
