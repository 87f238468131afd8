"""The sizes that bench_objective.py measures: a sweep, and what each objective chooses."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from bench_files import object_or_none
from bench_parts import Constant, OtherRows, check_rows, required_ids
from bench_trained_draft import measured

from vtrim_hf import DecodeReport, DecodingModel, LatencyModel, TokenCounts, search_vocabulary
from vtrim_hf.measuring_step import Loadable
from vtrim_hf.named_models import NamedModel
from vtrim_hf.vocabulary import write_atomically

ALPHAS = (0.5, 0.3, 0.7, 0.9)  # the default first
SIZES = 10
SMALLEST = 8  # the trained size over the smallest one; or the ids that count, if fewer
AT_RANDOM = 3  # of TPE's trials
NEAR = 0.02  # sizes that differ by less are measured once
SEED = 42
BOTH = ["float32", "bfloat16"]  # in which the target alone is tried


@dataclass(frozen=True, eq=False)
class Heads:
    """One draft with heads of any size, the ids of which stand in one order.

    Attributes:
        draft: as it was trained.
        target: the model that verifies.
        trained: rows of the draft.
        order: int64 [V], the first k of which are the vocabulary of size k.
    """

    draft: NamedModel
    target: NamedModel
    trained: int
    order: np.ndarray

    def of(self, size: int) -> Loadable:
        """Return the draft with so many rows; it drafts as many tokens in every round."""
        if size == self.trained:
            return Constant(self.draft)
        return OtherRows(self.draft, self.target, self.order[:size])


def sizes_around(trained: int, least: int, counted: int, most: int) -> list[int]:
    """Return ten sizes, the trained one and the largest among them, even in their logarithm.

    Args:
        trained: k of the draft.
        least: the number of required ids.
        counted: the number of ids that were counted or are required: more of them cover no more.
        most: V.
    """
    low = min(trained, max(1, least, min(trained, counted) // SMALLEST))
    steps = SIZES - 1
    share = np.log(trained / low) / np.log(most / low)
    below = min(max(round(steps * share), int(low < trained)), steps - int(trained < most))
    smaller = np.geomspace(low, trained, below + 1)
    larger = np.geomspace(trained, most, steps - below + 1)
    return sorted({round(size) for size in [*smaller.tolist(), *larger.tolist()]})


def with_chosen(sizes: Sequence[int], chosen: Sequence[int]) -> tuple[list[int], dict[int, int]]:
    """Add chosen sizes unless one is there that is nearly the same.

    Returns:
        All sizes to measure, ascending; and for each chosen one that which stands for it.
    """
    every, shown_as = list(sizes), {}
    for size in chosen:
        near = min(every, key=lambda one: abs(one - size))
        if abs(near - size) > NEAR * size:
            every.append(size)
            near = size
        shown_as[size] = near
    return sorted(every), shown_as


def kept_timing(output: Path, call: Mapping[str, Any], make: Callable[[], Any]) -> LatencyModel:
    """Return timings that were made for the same call before; else make and keep them."""
    place = output / "timing.json"
    there = object_or_none(place) or {}  # to time it again costs little
    if there.get("call") == call:
        try:
            return LatencyModel.from_dict(there["latency"])
        except (KeyError, TypeError, ValueError):
            print(f"{place} is damaged: it is timed again")
    latency: LatencyModel = make()
    output.mkdir(parents=True, exist_ok=True)
    kept = {"call": call, "latency": latency.to_dict()}
    write_atomically(place, json.dumps(kept, indent=1).encode())
    return latency


def chosen_by_tpe(
    speedup: Callable[[int], float], least: int, most: int, trials: int
) -> list[tuple[int, float]]:
    """Return the sizes that TPE tries and what they gave.

    The same values give the same trials, and what was measured before is only read: so a study
    that was interrupted is played again up to there.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=SEED, n_startup_trials=AT_RANDOM)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    study.optimize(
        lambda trial: speedup(trial.suggest_int("vocab_size", least, most, log=True)),
        n_trials=trials,
    )
    return [(trial.params["vocab_size"], float(trial.value or 0)) for trial in study.trials]


def predictions(
    target: NamedModel,
    counts: TokenCounts,
    required: Any,
    latency: LatencyModel,
    models: Mapping[str, DecodingModel],
    draft_length: int,
    curve: tuple[np.ndarray, np.ndarray],
) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """Choose sizes as the objectives do, and predict what the sweep's sizes are worth.

    Args:
        target: the model that verifies.
        counts: what the assistant says.
        required: ids that stay.
        latency: seconds of a draft's step.
        models: what a round gives and takes, by the objective's name here.
        draft_length: n.
        curve: the sweep's sizes, and what they cover of the search part.

    Returns:
        By objective: the choice, and the values of the sweep's sizes.
    """
    sizes, coverage = curve
    operations = LatencyModel.eagle3(target.config, vocab_size=target.vocab_size)
    saved = 1 - operations.costs(sizes) / operations.cost(target.vocab_size)
    choices: dict[str, Any] = {}
    values = {}
    for alpha in ALPHAS:
        name = f"utility {alpha}"
        found = search_vocabulary(counts, operations, required=required, alpha=alpha)
        choices[name] = {"k": found.k}
        values[name] = (alpha * coverage + (1 - alpha) * saved).tolist()
    for name, model in models.items():
        found = search_vocabulary(
            counts, latency, required=required, objective="throughput", decoding=model
        )
        expected = found.expected or {}
        best = expected["by_length"][draft_length - 1]
        choices[name] = {
            "k": best["k"],
            "predicted": best["search"]["speedup"],
            "advice": expected["advice"],
            "with_any_length": [expected["chosen"]["k"], expected["chosen"]["draft_length"]],
        }
        steps = model.step_seconds(latency, sizes)
        values[name] = model.speedups(coverage, steps)[draft_length].tolist()
    return choices, values


def choose(
    heads: Heads,
    counts: TokenCounts,
    curve: tuple[np.ndarray, np.ndarray],
    asked: Sequence[Sequence[int]],
    work: Path,
    args: argparse.Namespace,
    how: Mapping[str, Any],
) -> tuple[dict[str, Any], dict[str, list[float]], dict[str, list[DecodeReport]]]:
    """Let every objective choose a size by what the search part tells; no test prompt is read.

    TPE tries sizes from the number of required ids, at least 1, to all of V; the other objectives
    choose none that is smaller, and all of V or at most the ids that were counted or are required.

    Args:
        heads: the draft.
        counts: what the assistant says.
        curve: the sweep's sizes, and what they cover of the search part.
        asked: prompts of the search part.
        work: folder of what is measured.
        args: the command line.
        how: the same for every measurement.

    Returns:
        The choices; what is predicted for the sweep's sizes; and what was measured for both.
    """
    draft, target, trained = heads.draft, heads.target, heads.trained
    required = required_ids(target)
    place, alone = work / "acceptance", {"draft": heads.of(trained)}
    first = measured(place, target, alone, asked, plain_dtypes=BOTH, **how)
    check_rows(first, {"draft": trained})
    latency = kept_timing(
        work,
        {
            "draft": draft.identity,
            "target": target.identity,
            "dtype": args.dtype,
            "machine": first.machine,
        },
        lambda: LatencyModel.measured(
            OtherRows(draft, target, np.arange(target.vocab_size)).model(args.dtype).body
        ),
    )
    most = {"max_draft_length": max(16, args.draft_length)}
    covered = counts.coverage(draft.model("auto").vocabulary.ids.tolist(), "search")
    models = {
        "throughput": DecodingModel.from_report(first, **most),
        "throughput_by_counts": DecodingModel.from_report(first, coverage=covered, **most),
    }
    choices, values = predictions(
        target, counts, required, latency, models, args.draft_length, curve
    )
    tried: list[DecodeReport] = []

    def speedup(size: int) -> float:
        place, few = work / "trials" / str(size), asked[: args.trial_prompts]
        report = measured(place, target, {"draft": heads.of(size)}, few, plain_dtypes=[], **how)
        check_rows(report, {"draft": size})
        tried.append(report)
        return report.speedup

    # The sweep begins further up, where the others may choose less.
    least = max(1, len(required))
    trials = chosen_by_tpe(speedup, least, target.vocab_size, args.trials)
    choices["tpe"] = {"k": max(trials, key=lambda one: one[1])[0], "trials": trials}
    return choices, values, {"the search part": [first], "trials of TPE": tried}
