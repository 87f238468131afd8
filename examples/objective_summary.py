"""What bench_objective.py tells of all domains together: which objective chooses best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench_results import machine_lines, shown, spread, table


def markdown(found: Mapping[str, Any]) -> str:
    """Return what people read of all domains."""
    domains, settings = found["domains"], found["settings"]
    return "\n".join(
        [
            f"# Which objective finds the fastest vocabulary for {found['target']}",
            "",
            f"{', '.join(f'[{name}]({name}/report.md)' for name in domains)}: a trained draft and "
            f"{settings['prompts']} test prompts each; greedy, at most "
            f"{settings['max_new_tokens']} new tokens, n = {settings['draft_length']}, "
            f"{settings['dtype']}.",
            "",
            *machine_lines({name: one["machines"] for name, one in domains.items()}),
            "",
            *dict.fromkeys(f"    {one['command']}" for one in domains.values()),
            "",
            "![The speed of what was chosen](report.png)",
            "",
            *_objectives(found),
            "",
            "The best is the size that no other measured in a domain beats in the median of the "
            "prompts, which it is by luck, too. Over it: the median ratio of the prompts, in "
            "brackets its 95 % interval, and over all domains the geometric mean. Rank "
            "correlation: Spearman's, of what was predicted for the sizes of the sweep and what "
            "was measured, the mean of the domains.",
            "",
            f"## {_heading(len(domains))}",
            "",
            *advice(found["compared"]),
            "",
        ]
    )


def _heading(domains: int) -> str:
    return "What to use" if domains > 1 else "What to use, by one domain"


def _objectives(found: Mapping[str, Any]) -> list[str]:
    domains, compared = found["domains"], found["compared"]
    rows = []
    for name, one in compared["objectives"].items():
        chosen = [other["choices"][name] for other in domains.values()]
        rows.append(
            [
                f"**`{name}`**" if name == compared["recommended"] else f"`{name}`",
                *(f"k = {made['k']:,}: {spread(made['of_best'])}" for made in chosen),
                f"{one['of_best']:.3f}",
                f"{100 * (1 - one['of_best']):.1f} %",
                spread(one["over_recommended"]),
                shown(found["mean_rank_correlation"].get(name), ".2f"),
            ]
        )
    heads = ["objective", *(f"{name}, over the best" for name in domains), "all, over the best"]
    heads += ["falls short by", f"over `{compared['recommended']}`", "rank correlation"]
    return table(heads, rows)


def advice(compared: Mapping[str, Any]) -> list[str]:
    """Say which objective to use, and which others may be as good."""
    first, alike = compared["recommended"], compared["alike"]
    one = compared["objectives"][first]
    words = f"`{first}` comes nearest to the best size: {one['of_best']:.3f} times as fast."
    if alike:
        words += f" Not to be told from it by these prompts: {_times(compared, alike)}."
    slower = [name for name in compared["objectives"] if name not in (first, *alike)]
    if slower:
        words += f" Slower: {_times(compared, slower)}."
    return [words]


def _times(compared: Mapping[str, Any], names: Sequence[str]) -> str:
    return "; ".join(
        f"`{name}`, {spread(compared['objectives'][name]['over_recommended'])} times as fast"
        for name in names
    )


def draw(found: Mapping[str, Any]) -> Any:
    """Draw the speed of each objective's choice over the best size, by domain."""
    from matplotlib.figure import Figure

    domains, names = found["domains"], [*found["compared"]["objectives"]]
    height = 1.6 + 0.22 * len(domains) * (len(names) + 1)
    figure = Figure(figsize=(9, height), layout="constrained")
    axes = figure.subplots()
    for number, name in enumerate(names):
        ratios = [one["choices"][name]["of_best"] for one in domains.values()]
        middle = [ratio["median"] for ratio in ratios]
        ends = [
            [ratio["median"] - ratio["low"] for ratio in ratios],
            [ratio["high"] - ratio["median"] for ratio in ratios],
        ]
        shift = 0.8 * (number + 0.5) / len(names) - 0.4
        heights = [place + shift for place in range(len(domains))]
        axes.errorbar(middle, heights, xerr=ends, fmt="o", capsize=2, label=name)
    axes.axvline(1, color="black", linewidth=0.8, linestyle=":")
    axes.set_yticks(range(len(domains)), [*domains])
    axes.invert_yaxis()
    axes.set_xlabel("tokens/s over the best size: median and 95 % interval")
    axes.grid(axis="x", alpha=0.3)
    figure.legend(loc="outside lower center", ncols=4, fontsize=8)
    return figure
