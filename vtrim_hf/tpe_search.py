"""The paper's search: Optuna's tree-structured Parzen estimator over the vocabulary's size.

A study lives in whatever storage Optuna knows and goes on where it stopped. Its name carries a
hash of everything that the objective depends on, so that a study never mixes two problems.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .search_space import SearchSpace

Evaluate = Callable[..., float]
"""The objective, to be maximised: of a size, or of a size and a draft length."""


@dataclass(frozen=True)
class StudyOutcome:
    """What a study found.

    Attributes:
        size: the best size that meets every constraint.
        facts: JSON-able summary.
        study: Optuna's own object.
        draft_length: the best with that size, if draft lengths were searched too.
    """

    size: int
    facts: Mapping[str, Any]
    study: Any
    draft_length: int | None = None


def run_study(
    space: SearchSpace,
    evaluate: Evaluate,
    problem: Mapping[str, Any],
    *,
    trials: int,
    seed: int,
    storage: Any = None,
    study_name: str = "vtrim",
    progress: bool = True,
    draft_lengths: int | None = None,
) -> StudyOutcome:
    """Add trials to a study, new or stored, and return the best of all of its trials.

    Every trial states its constraints before its value, so that none passes for feasible by saying
    nothing. A point is evaluated once, however often it is proposed. The sampler's seed is `seed`
    plus the number of trials that the study has already: the same calls give the same trials, and
    a study that goes on does not repeat the points it began with.

    Where floors rule sizes out, the first trial is the smallest size that meets them, which the
    counts alone tell: a floor may leave so few sizes that chance alone finds none of them.

    Args:
        space: the sizes and their floors.
        evaluate: the objective, to be maximised, of a size; with `draft_lengths` of a size and a
            draft length.
        problem: JSON-able facts that the objective and the space depend on.
        trials: trials to add.
        seed: of the sampler.
        storage: an Optuna URL, such as `sqlite:///study.db`, a storage object, or None.
        study_name: what the study's name begins with.
        progress: show a progress bar.
        draft_lengths: search the draft length too, from 1 to this.

    Raises:
        ValueError: for fewer than one trial, or a storage that is no URL.
    """
    import optuna

    if trials < 1:
        raise ValueError(f"trials must be at least 1, got {trials}")
    opened, close = _open_storage(storage)
    name = f"{study_name}-{space_hash(problem)[:12]}"
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        study = optuna.create_study(
            study_name=name, storage=opened, load_if_exists=True, direction="maximize"
        )
        before = len(study.trials)
        study.sampler = optuna.samplers.TPESampler(seed=seed + before)
        known = _known_values(study)
        evaluated = dict(known)
        objective = _objective(space, evaluate, evaluated, draft_lengths)
        smallest = int(space.sizes[space.feasible][0])
        if not space.feasible.all() and smallest not in {size for size, *_ in known}:
            study.enqueue_trial({"vocab_size": smallest})
        study.optimize(objective, n_trials=trials, show_progress_bar=progress)
        # Never from a summary: those pass over constraints.
        best = study.best_trial
        size, length = best.params["vocab_size"], best.params.get("draft_length")
        facts = {
            "name": name,
            "storage": _without_password(storage),
            "seed": seed,
            "trials_before": before,
            "trials": len(study.trials),
            "evaluations": len(evaluated) - len(known),
            "distinct_sizes": len({size for size, *_ in evaluated}),
            "best_trial": best.number,
            "best_size": int(size),
            "best_utility": best.value,
            "smallest_feasible": smallest,
        }
        if length is not None:
            facts["best_draft_length"] = int(length)
    finally:
        optuna.logging.set_verbosity(verbosity)
        close()
    return StudyOutcome(int(size), facts, study, None if length is None else int(length))


def space_hash(problem: Mapping[str, Any]) -> str:
    """Return the sha256 (hex) of everything that the objective and the space depend on."""
    text = json.dumps(problem, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


_Point = tuple[int, ...]  # a size, and a draft length where those are searched


def _objective(
    space: SearchSpace,
    evaluate: Evaluate,
    evaluated: dict[_Point, float],
    draft_lengths: int | None,
) -> Callable[[Any], float]:
    low, high = int(space.sizes[0]), int(space.sizes[-1])

    def objective(trial: Any) -> float:
        size = int(trial.suggest_int("vocab_size", low, high, step=space.step))
        for floor in space.floors:
            trial.set_constraint(floor.key, floor.violation(space.position(size)))
        point: _Point = (size,)
        if draft_lengths is not None:
            point = (size, int(trial.suggest_int("draft_length", 1, draft_lengths)))
        if point not in evaluated:
            evaluated[point] = float(evaluate(*point))
        return evaluated[point]

    return objective


def _known_values(study: Any) -> dict[_Point, float]:
    """Read what a stored study evaluated already, by point."""
    from optuna.trial import TrialState

    done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    names = ("vocab_size", "draft_length")
    return {
        tuple(int(trial.params[name]) for name in names if name in trial.params): float(
            trial.value
        )
        for trial in done
    }


def _open_storage(storage: Any) -> tuple[Any, Callable[[], None]]:
    """Open a URL; return the storage and what closes its connections."""
    if not isinstance(storage, str):
        return storage, lambda: None
    from optuna.storages import RDBStorage
    from sqlalchemy.exc import ArgumentError

    try:
        opened = RDBStorage(storage)
    except ArgumentError as error:
        raise ValueError(
            f"storage must be a URL that Optuna knows, such as sqlite:///study.db, got {storage!r}"
        ) from error

    def close() -> None:
        opened.remove_session()
        opened.engine.dispose()

    return opened, close


def _without_password(storage: Any) -> str | None:
    """Name a storage so that the name may be published."""
    if storage is None:
        return None
    if not isinstance(storage, str):
        return type(storage).__name__
    from sqlalchemy.engine import make_url

    return make_url(storage).render_as_string(hide_password=True)
