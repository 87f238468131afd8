"""What bench_objective.py tells of one domain: words, tables and a plot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench_results import machine_lines, shown, spread, table
from objective_figures import USUAL
from objective_summary import advice

OBJECTIVES = {
    "utility": "the paper's utility with this weight alpha, exact; needs counts alone",
    "throughput": "expected tokens a second; needs one measurement of the draft",
    "throughput_by_counts": "the same; what the draft covers is told by the counts",
    "tpe": "Optuna's TPE; needs a measurement a trial",
}
WHERE = {"search": "search part", "test": "test data"}

# --- words -----------------------------------------------------------------------------------


def markdown(found: Mapping[str, Any]) -> str:
    """Return what people read."""
    draft, left_out, settings = found["trained_draft"], found["left_out"], found["settings"]
    lines = [
        f"# The size of a draft's vocabulary: predicted and measured ({found['domain']})",
        "",
        f"{found['draft']} for {found['target']}: {settings['prompts']} prompts of "
        f"{found['test_data']} ({found['test_data_sha256'][:16]}), evenly from all over it; "
        f"greedy, at most {settings['max_new_tokens']} new tokens, "
        f"n = {settings['draft_length']} for all sizes, no threshold, {settings['dtype']}. All "
        "sizes take turns on each prompt; medians with 95 % "
        f"bootstrap intervals. The target alone ({found['baseline']}): "
        f"{found['plain_tokens_per_second']:.1f} tokens/s. V = {settings['vocab_size']:,}.",
        "",
        f"Chosen from {found['search_data']} ({found['search_data_sha256'][:16]}), its search "
        f"part; counts: {found['counts'] or 'the same'} ({found['counts_fingerprint'][:12]}). "
        f"{found['required']} required ids are part of every size.",
        "",
        *machine_lines(found["machines"]),
        "",
        f"    {found['command']}",
    ]
    if settings["longest_prompt"] is not None:
        lines += [
            "",
            f"Prompts of more than {settings['longest_prompt']:,} characters are left out: "
            f"{left_out['search']} of the search part, {left_out['test']} of the test data.",
        ]
    torn = [f"{n} of the {WHERE[part]}" for part, n in found.get("unreadable", {}).items() if n]
    if torn:
        lines += [
            "",
            f"Rows without a prompt that can be read are passed over: {', '.join(torn)}.",
        ]
    lines += ["", "![Predicted and measured](report.png)", "", "## Sizes", "", *_sizes(found)]
    lines += [
        "",
        f"Up to {found['trained_k']:,} rows (as trained) smaller heads are cut from the draft; "
        "larger ones have rows of the target that it was not trained with, which a draft of that "
        "size would have been. The draft as it was trained: acceptance length "
        + ", ".join(f"{one['acceptance_length'] or 1:.2f} ({n})" for n, one in draft.items())
        + "; of what the target says it covers "
        + ", ".join(
            f"{shown(one['covers_of_the_targets_answers'], '.1%')} ({n})"
            for n, one in draft.items()
        )
        + f", of the counts {shown(found['trained_covers_of_counts'], '.1%')}. It was trained on "
        "prompts as those of the search part, where it may be better than on others. Of its ids "
        f"{found['trained_ids_first_by_counts']:,} are among the first {found['trained_k']:,} by "
        "these counts and required ids, from which the objectives choose.",
        "",
        "## Choices",
        "",
        *(f"- `{name}`: {words}" for name, words in OBJECTIVES.items()),
        "",
        *_choices(found),
        "",
        "The best is the size that no other beats in the median of the prompts; of several sizes "
        "one is so by luck, too: a choice whose interval reaches 1.00 "
        "cannot be told from it. A choice within 2 % of a size of the sweep was measured as that. "
        f"No search chooses more than the {found['counted_or_required']:,} ids that were counted "
        "or are required, but for all of V.",
    ]
    for name, one in found["choices"].items():
        if "advice" in one:
            k, length = one["with_any_length"]
            lines.append(
                f"`{name}` says: {one['advice']}; with any draft length k = {k:,}, n = {length}."
            )
    trials = [f"{k:,}: {value:.2f}" for k, value in found["choices"]["tpe"]["trials"]]
    lines += [
        f"Trials of `tpe` (k and speed-up on {settings['trial_prompts']} prompts): "
        f"{'; '.join(trials)}.",
        "",
        "## How predictions rank",
        "",
        f"Spearman's rank correlation of what is predicted for the {len(found['sweep'])} sizes of "
        "the sweep and their measured medians:",
        "",
        *table(
            ["prediction", "rank correlation (95 %)"],
            [
                [name, f"{one['rho']:.2f} ({one['low']:.2f} to {one['high']:.2f})"]
                for name, one in found["rank_correlation"].items()
            ],
        ),
        "",
        "## What to use",
        "",
        *advice(found["compared"]),
        "",
        "This is one draft, one domain and one machine: read several "
        "([all together](../report.md)).",
        "",
    ]
    return "\n".join(lines)


def _sizes(found: Mapping[str, Any]) -> list[str]:
    in_sweep = {size: place for place, size in enumerate(found["sweep"])}
    rows = []
    for row in found["measured"]:
        k, place = row["k"], in_sweep.get(row["k"])
        made = "retrim" if k < found["trained_k"] else "extend"
        predicted = [
            "" if place is None else f"{v[place]:.3f}" for v in found["predicted"].values()
        ]
        covered = None if place is None else found["sweep_covers_of_counts"][place]
        rows.append(
            [
                f"**{k:,}**" if k == found["best"] else f"{k:,}",
                "as trained" if k == found["trained_k"] else made,
                shown(covered, ".2%"),
                f"{row['tokens_per_second']:.1f}",
                spread(row["over_plain"]),
                spread(row["of_best"]),
                shown(row["acceptance_length"], ".2f"),
                shown(row["draft_ms"], ".2f"),
                *predicted,
            ]
        )
    heads = ["k", "by", "of the counts", "tokens/s", "over plain", "over the best"]
    heads += ["acceptance length", "draft ms/token"]
    return table([*heads, *(f"`{name}` says" for name in found["predicted"])], rows)


def _choices(found: Mapping[str, Any]) -> list[str]:
    rows = []
    for name, one in found["choices"].items():
        short = 1 - one["of_best"]["median"]
        verdict = "inside the spread" if one["inside_the_spread"] else "slower than the best"
        rows.append(
            [
                f"`{name}`",
                f"{one['k']:,}",
                f"{one['measured_at']:,}",
                shown(one.get("predicted"), ".2f"),
                spread(one["over_plain"]),
                spread(one["over_usual"]),
                spread(one["of_best"]),
                f"{100 * short:.1f} %",
                "the best" if one["measured_at"] == found["best"] else verdict,
            ]
        )
    heads = ["objective", "k*", "measured at", "predicted", "over plain", f"over `{USUAL}`"]
    heads.append("over the best")
    return table([*heads, "falls short by", ""], rows)


# --- plot ------------------------------------------------------------------------------------


def draw(found: Mapping[str, Any]) -> Any:
    """Draw what was measured by size, what was predicted, and where the choices are."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 7), layout="constrained")
    above, below = figure.subplots(2, sharex=True)
    spreads = [row["over_plain"] for row in found["measured"]]
    medians = [one["median"] for one in spreads]
    ends = [
        [one["median"] - one["low"] for one in spreads],
        [one["high"] - one["median"] for one in spreads],
    ]
    sizes = [row["k"] for row in found["measured"]]
    above.errorbar(sizes, medians, yerr=ends, fmt="o-", capsize=3, label="measured")
    for name, values in found["predicted"].items():
        axes = below if name.startswith("utility") else above
        axes.plot(found["sweep"], values, "--", label=f"{name}, predicted")
    chosen: dict[int, list[str]] = {}
    for name, one in found["choices"].items():
        chosen.setdefault(one["measured_at"], []).append(name)
    for (size, names), mark in zip(chosen.items(), "sD^v<>*", strict=False):
        words = f"chosen by {', '.join(names)}"
        height = medians[sizes.index(size)]
        above.plot(size, height, mark, markersize=11, fillstyle="none", label=words)
    above.set_ylabel("tokens/s over the target alone")
    below.set_ylabel("utility")
    below.set_xlabel("k, rows of the draft's head")
    below.set_xscale("log")
    for axes in (above, below):
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)
    return figure
