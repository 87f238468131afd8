"""Does the vocabulary's size that an objective promises most of give the most tokens a second?

    python examples/bench_objective.py --target smollm2 --data domains --draft sql=drafts/sql

One trained draft of the domain NAME (`--draft NAME=DRAFT`) is given heads of ten sizes k, from few
rows to all. All ids stand in one order: those it was trained with by their counts, required ones
first, then the others by theirs; smaller heads are cut from it (`retrim`), larger ones take rows
of the target that it was not trained with (`extend`). Before any prompt of DATA/NAME/test.jsonl is
read, sizes are chosen by

- `utility`, the paper's, with four weights alpha (operations of a draft's step, as in the paper);
- `throughput`, with the draft's acceptance and times as measured on `--search-data`, with this n;
- `throughput_by_counts`: the same, but what the draft's vocabulary covers is what the counts say,
  not what the target said in that measurement;
- `tpe`: Optuna's TPE sampler over k (8 trials, three of them at random), each trial a measurement
  of the speed-up on a few prompts of `--search-data`.

`--search-data` is chat data, by default DATA/NAME/train.jsonl; only its search part is asked, and
it is counted unless `--counts` gives what `vtrim count` wrote. Best is the file of the target's
own answers that the draft was trained on. Then all ten sizes and all chosen ones answer the test
prompts in turns, greedy, with the same n; the report says by how much each choice falls short of
the best size, and how the predictions of the ten sizes rank beside what was measured.

With 12 prompts about 40 minutes with SmolLM2 on 2 cores (estimated from the number of prompts: 7 s
a prompt and size). The same command goes on where it was interrupted. OUTPUT then holds report.md,
figures.json and report.png.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from bench_parts import (
    OtherRows,
    by_need,
    check_rows,
    command_line,
    counts_of,
    file_hash,
    named_drafts,
    required_ids,
    rows_of,
    search_rows,
    spread_prompts,
    told,
    write_results,
)
from bench_trained_draft import measured
from objective_report import draw, figures_of, markdown

from vtrim_hf import DecodingModel, LatencyModel, TokenCounts, search_vocabulary
from vtrim_hf.measuring_step import Loadable
from vtrim_hf.named_models import NamedModel
from vtrim_hf.search_space import running_coverage
from vtrim_hf.vocabulary import rank_ids, write_atomically

ALPHAS = (0.5, 0.3, 0.7, 0.9)  # the default first
SIZES = 10
SMALLEST = 8  # the smallest size is the trained one over this
AT_RANDOM = 3  # of TPE's trials
HELDOUT = 0.2
NEAR = 0.02  # sizes that differ by less are measured once
SEED = 42


def sizes_around(trained: int, least: int, most: int) -> list[int]:
    """Return ten sizes, the trained one and the largest among them, even in their logarithm.

    Args:
        trained: k of the draft.
        least: the number of required ids.
        most: V.
    """
    low = min(trained, max(1, least, trained // SMALLEST))
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
    if place.is_file():
        there = json.loads(place.read_text("utf-8"))
        if there["call"] == call:
            return LatencyModel.from_dict(there["latency"])
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


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", required=True, help="Hub id, folder or smollm2")
    parser.add_argument("--data", type=Path, required=True, help="folder of domains")
    parser.add_argument("--draft", required=True, metavar="NAME=DRAFT", help="NAME is a domain")
    parser.add_argument("--search-data", type=Path, help="default: DATA/NAME/train.jsonl")
    parser.add_argument("--counts", type=Path, help="what `vtrim count` wrote of it")
    parser.add_argument("--prompts", type=int, default=12, help="of test.jsonl")
    parser.add_argument("--search-prompts", type=int, default=12, help="for the acceptance")
    parser.add_argument("--trial-prompts", type=int, default=6, help="of these, in a trial of TPE")
    parser.add_argument("--trials", type=int, default=8, help="of TPE")
    parser.add_argument("--longest-prompt", type=int, help="characters; longer ones are left out")
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--draft-length", type=int, default=4, help="n, of every size")
    parser.add_argument("--dtype", default="bfloat16", help="of target and draft")
    parser.add_argument("--output", type=Path, default=Path("bench_objective"))
    args = parser.parse_args(argv)
    numbers = ("prompts", "search_prompts", "trial_prompts", "trials", "max_new_tokens")
    for name in (*numbers, "draft_length"):
        if getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    if args.trial_prompts > args.search_prompts:
        parser.error("--trial-prompts must not be more than --search-prompts")
    return args


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    args = arguments(argv)
    target, drafts = NamedModel(args.target), named_drafts([args.draft])
    if len(drafts) != 1:
        raise SystemExit(f"--draft must be one NAME=DRAFT, got {', '.join(drafts)}")
    ((domain, draft),) = drafts.items()
    asked_of = args.search_data or args.data / domain / "train.jsonl"
    tested_on = args.data / domain / "test.jsonl"
    for path in (asked_of, tested_on):
        if not path.is_file():
            raise SystemExit(f"there is no {path}")
    width, trained = target.vocab_size, rows_of(draft, target)
    own = draft.model("auto").vocabulary.ids.numpy()
    counts = counts_of(target, args.counts, asked_of, heldout=HELDOUT)
    required = required_ids(target)
    by_counts = by_need(counts.array("search"), required)
    order = by_need(counts.array("search"), required, own)
    sweep = np.array(sizes_around(trained, len(required), width))
    curve = (sweep, running_coverage(counts.array("search"), order, sweep))
    longest, tokenizer = args.longest_prompt, target.tokenizer
    rows = list(search_rows(asked_of, HELDOUT, width))
    asked, asked_left_out = spread_prompts(rows, tokenizer, args.search_prompts, longest)
    how: dict[str, Any] = {
        "dtype": args.dtype,
        "max_new_tokens": args.max_new_tokens,
        "draft_length": args.draft_length,
        "threshold": 0.0,  # nothing ends a draft early, so that n is the same for all
    }
    both = ["float32", "bfloat16"]

    def head(size: int) -> Loadable:
        return draft if size == trained else OtherRows(draft, target, order[:size])

    def speedup(size: int) -> float:
        place, few = args.output / "trials" / str(size), asked[: args.trial_prompts]
        report = measured(place, target, {"draft": head(size)}, few, plain_dtypes=[], **how)
        check_rows(report, {"draft": size})
        return report.speedup

    place = args.output / "acceptance"
    first = measured(place, target, {"draft": draft}, asked, plain_dtypes=both, **how)
    check_rows(first, {"draft": trained})
    latency = kept_timing(
        args.output,
        {
            "draft": draft.identity,
            "target": target.identity,
            "dtype": args.dtype,
            "machine": first.machine,
        },
        lambda: LatencyModel.measured(
            OtherRows(draft, target, np.arange(width)).model(args.dtype).body
        ),
    )
    covered = counts.coverage(own.tolist(), "search")
    most = {"max_draft_length": max(16, args.draft_length)}
    models = {
        "throughput": DecodingModel.from_report(first, **most),
        "throughput_by_counts": DecodingModel.from_report(first, coverage=covered, **most),
    }
    choices, values = predictions(
        target, counts, required, latency, models, args.draft_length, curve
    )
    trials = chosen_by_tpe(speedup, int(sweep[0]), width, args.trials)
    choices["tpe"] = {"k": max(trials, key=lambda one: one[1])[0], "trials": trials}

    every, shown_as = with_chosen(sweep.tolist(), [one["k"] for one in choices.values()])
    for one in choices.values():
        one["measured_at"] = shown_as[one["k"]]
    names = {size: "draft" if size == trained else f"k={size}" for size in every}
    tested, left_out = spread_prompts(tested_on, tokenizer, args.prompts, longest)
    ways = {name: head(size) for size, name in names.items()}
    report = measured(args.output / "sizes", target, ways, tested, plain_dtypes=both, **how)
    check_rows(report, {name: size for size, name in names.items()})
    found = {
        **told(args),
        "domain": domain,
        "search_data": str(asked_of),
        "search_data_sha256": file_hash(asked_of),
        "test_data": str(tested_on),
        "test_data_sha256": file_hash(tested_on),
        "left_out": {"search": asked_left_out, "test": left_out},
        "counts_fingerprint": counts.fingerprint,
        "draft_identity": draft.identity,
        "target_identity": target.identity,
        "vocab_size": width,
        "trained_k": trained,
        "required": len(required),
        "machine": report.machine,
        "counted_or_required": int(rank_ids(counts.array("search"), required).size),
        "trained_covers_of_counts": covered,
        "trained_ids_first_by_counts": int(np.isin(own, by_counts[:trained]).sum()),
        "command": command_line("bench_objective.py", argv),
        **figures_of(report, first, names, curve, choices, values),
    }
    text = markdown(found)
    write_results(args.output, found, text, draw(found))
    print(text)


if __name__ == "__main__":
    main()
