"""Choosing a draft vocabulary: how many tokens, and which, for one domain and one cost.

    maximise U(k) = alpha * C(k) + (1 - alpha) * R(k)   subject to   C(k) >= min_coverage

C(k) is the share of the counted tokens that the k most needed ids hold, R(k) the share of a draft
step's cost that a head of k rows saves. Or, where it is known how many draft tokens are accepted
and what a round takes, maximise the expected tokens a second, over k and the draft length
together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from .decoding_model import DecodingModel
from .kept_ids import whole_ids
from .latency import LatencyModel
from .search_judging import Choice, judge
from .search_result import SearchResult
from .search_space import SearchSpace, build_space
from .search_throughput import Pair, Throughput, check_arguments
from .tpe_search import StudyOutcome, run_study

OBJECTIVES = ("utility", "throughput")
METHODS = ("exact", "tpe")

# What the paper's published run fixes (arXiv 2603.05210); it also has no required ids, and its
# search is TPE with 100 trials and the seed 42, which are the defaults here.
_PAPER: Mapping[str, Any] = {"alpha": 0.5, "k_min": 50, "k_max": 50_000, "multiple_of": 1}
_DEFAULTS: Mapping[str, Any] = {"alpha": 0.5, "k_min": 50, "k_max": None, "multiple_of": None}


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
    decoding: DecodingModel | None = None,
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

    With objective="throughput" the draft length is chosen too, and the result may say "do not
    trim" (then k is V, unless `k_max` forbids it) or "do not draft" (then the draft length is 0):
    see `SearchResult.expected`. Size and length are those of the search part; the three answers
    are judged on the held-out part. A TPE study only finds the size and length of a cut head. The
    answer is the exact search's, for the best cut head there is: with few trials it may be "trim"
    although the one that was found is slower than the whole head; `gap_to_exact` tells.

    Args:
        counts: a `TokenCounts`. Its search part chooses; its held-out part judges.
        latency: what a draft step costs, for a vocabulary of the same target.
        required: ids that must stay, such as `required_token_ids(...)`; they are part of k.
        alpha: weight of coverage against the saving, in [0, 1]; throughput has none.
        min_coverage: least coverage of all data, in [0, 1].
        domain_floors: least coverage of each domain: one number for all, or by name.
        k_min: smallest size; lowered to the number of counted and required ids if that is less.
        k_max: largest size; by default, and at most, all ids that were counted or required.
        multiple_of: sizes to choose from are multiples of this; by default the latency model's
            own, which is 64 for a GPU and 1 otherwise.
        method: "exact" or "tpe"; by default "exact", and "tpe" with the preset.
        preset: "paper" for alpha 0.5, k in [50, 50000], any size, no required ids, and TPE.
        objective: what is maximised: "utility", or "throughput", the expected tokens a second.
        decoding: for throughput: what a round of drafting gives and takes, a `DecodingModel`.
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
    check_arguments(
        objective, decoding, alpha=alpha, preset=preset, usual_alpha=_DEFAULTS["alpha"]
    )
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
    if decoding is not None:
        problem |= {"alpha": None, "decoding": decoding.to_dict()}

    def study(over: SearchSpace, evaluate: Any, draft_lengths: int | None) -> StudyOutcome | None:
        if method == "exact":
            return None
        return run_study(
            over,
            evaluate,
            problem | {"sizes": [int(over.sizes[0]), int(over.sizes[-1])]},
            trials=trials,
            seed=seed,
            storage=storage,
            study_name=study_name,
            progress=progress,
            draft_lengths=draft_lengths,
        )

    if decoding is None:
        choice = _most_useful(space, study)
    else:
        weighed = Throughput.of(space, counts, latency, decoding, limits["k_max"])
        space, choice = weighed.weighed, _fastest(weighed, study)
    settings = {
        **problem,
        "required": {"number": len(wanted), "by_reason": reasons},
        "method": method,
        "preset": preset,
        "domains": list(counts.domains),
        "exact_for": "one ranking of the ids: required first, then by count, ties by id",
    }
    if choice.outcome is not None:
        settings |= {"trials": trials, "seed": seed}
    return judge(counts, latency, space, choice, settings, decoding)


_Study = Callable[[SearchSpace, Callable[..., float], int | None], StudyOutcome | None]


def _most_useful(space: SearchSpace, study: _Study) -> Choice:
    """Choose the size of greatest utility, or the one that a study finds."""

    def utility(size: int) -> float:
        return float(space.utility[space.position(size)])

    best = space.best_size()
    outcome = study(space, utility, None)
    size = best if outcome is None else outcome.size
    return Choice(size, utility(size), utility(best), outcome)


def _fastest(weighed: Throughput, study: _Study) -> Choice:
    """Choose the size and draft length that promise most tokens a second."""
    exact = weighed.decide()
    outcome = study(weighed.cut, weighed.value, weighed.model.max_draft_length)
    decision = exact
    if outcome is not None and outcome.draft_length is not None:
        found: Pair = (outcome.size, outcome.draft_length)
        decision = weighed.decide(found)
    return Choice(
        decision.size,
        decision.utility,
        exact.utility,
        outcome,
        decision,
        weighed.heldout_utility,
    )


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
