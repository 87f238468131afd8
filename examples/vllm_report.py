"""What `bench_vllm.py` tells: figures of its rows, their tables, and a drawing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from bench_results import PICTURE, spread, table, where_lines

PLAIN, TRIMMED, FULL = WAYS = ("plain", "trimmed", "full")
WORDS = {PLAIN: "vLLM alone", TRIMMED: "the draft", FULL: "the draft with every row (`extend`)"}


def over(values: Sequence[float], others: Sequence[float]) -> dict[str, Any]:
    """Return the ratio of two medians, and the ratios of each round."""
    rounds = [one / other for one, other in zip(values, others, strict=True)]
    return {
        "ratio": median(values) / median(others),
        "low": min(rounds),
        "high": max(rounds),
        "rounds": rounds,
    }


def acceptance(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return how much of the drafts was accepted, in all rounds together."""
    rows = list(rows)
    drafts = sum(row["drafts"][0] for row in rows)
    accepted = [sum(column) for column in zip(*(row["accepted"] for row in rows), strict=True)]
    return {
        "drafts": drafts,
        "drafted": sum(row["drafted"][0] for row in rows),
        "accepted": sum(accepted),
        "length": 1 + sum(accepted) / max(drafts, 1),
        "by_position": [count / max(drafts, 1) for count in accepted],
    }


def cell_of(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the figures of one domain with one number of texts at a time.

    Args:
        rows: one a round and way, as `bench_vllm.py` keeps them.
    """
    by_way: dict[str, list[Mapping[str, Any]]] = {way: [] for way in WAYS}
    for row in sorted(rows, key=lambda row: int(row["round"])):
        by_way[row["way"]].append(row)
    speeds = {
        way: [row["tokens"] / row["seconds"] for row in found] for way, found in by_way.items()
    }
    return {
        "rounds": len(speeds[PLAIN]),
        "tokens_per_second": {way: median(values) for way, values in speeds.items()},
        "tokens_per_second_of_rounds": speeds,
        "over_plain": {way: over(speeds[way], speeds[PLAIN]) for way in (TRIMMED, FULL)},
        "trimmed_over_full": over(speeds[TRIMMED], speeds[FULL]),
        "acceptance": {way: acceptance(by_way[way]) for way in (TRIMMED, FULL)},
        "new_tokens": {way: found[0]["tokens"] for way, found in by_way.items()},
        "same_texts": {
            way: min(
                sum(a == b for a, b in zip(one["said"], plain["said"], strict=True))
                for one, plain in zip(by_way[way], by_way[PLAIN], strict=True)
            )
            for way in (TRIMMED, FULL)
        },
    }


def ratio_line(found: Mapping[str, Any]) -> str:
    """Write a ratio with the lowest and the highest of a round."""
    return spread({**found, "median": found["ratio"]})


def domain_rows(name: str, one: Mapping[str, Any], at_once: str, prompts: int) -> list[list[str]]:
    """Return the rows of a domain in the table of one number of texts at a time."""
    cell, rows = one["cells"][at_once], []
    for way in WAYS:
        found = [
            name,
            WORDS[way],
            f"{one['head_rows'].get(way, one['vocab_size']):,}",
            f"{cell['tokens_per_second'][way]:.1f}",
        ]
        if way == PLAIN:
            rows.append([*found, "1.00", "", "", ""])
            continue
        taken = cell["acceptance"][way]
        rows.append(
            [
                *found,
                ratio_line(cell["over_plain"][way]),
                f"{taken['length']:.2f}",
                " ".join(f"{share:.3f}" for share in taken["by_position"]),
                f"{cell['same_texts'][way]} of {prompts}",
            ]
        )
    return rows


def passed_over(one: Mapping[str, Any], longest: int) -> str:
    """Say which prompts were not asked."""
    if not one["longer"]:
        return f"none before the last of them was longer than {longest:,} tokens"
    places = ", ".join(map(str, one["longer"]))
    return f"and {len(one['longer'])} of more than {longest:,} tokens passed over: {places}"


def place_line(one: Mapping[str, Any]) -> str:
    """Say where a domain was measured, and with what."""
    machine = one["machine"]
    served, exported = (
        ", ".join(f"{name} {version}" for name, version in one[which].items() if version)
        for which in ("versions", "exported_with")
    )
    return f"{machine['cpu']}, {machine['cores']} cores; {served}; exported with {exported}"


def markdown(found: Mapping[str, Any]) -> str:
    """Return what people read."""
    settings, domains = found["settings"], found["domains"]
    told = ", ".join(f"{name}={value}" for name, value in settings["environment"].items())
    lines = [
        f"# Drafts served by vLLM, for {found['target']}",
        "",
        f"{settings['prompts']} prompts a domain, the first of its file that have at most "
        f"{settings['max_prompt_tokens']:,} tokens; greedy, at most {settings['max_new_tokens']} "
        f"new tokens, {settings['draft_length']} tokens drafted a round, {settings['dtype']}, "
        f"eager, no prefix cache. {settings['rounds']} rounds, in each of which every way answers "
        "all prompts, in turns. Tokens/s: new tokens over seconds, reading the prompts included; "
        "the median of the rounds. Over vLLM alone: the ratio of the medians; the brackets hold "
        f"the lowest and the highest ratio of the {settings['rounds']} rounds, which is no "
        "interval of confidence. Accepted by position: the share of the drafts whose first, "
        "second, ... token was taken.",
        "",
        *where_lines({name: [place_line(one)] for name, one in domains.items()}),
        "",
        f"Its environment: {told or 'nothing is set'}. Unless it is told otherwise "
        "(VLLM_CPU_OMP_THREADS_BIND), vLLM 0.32 computes on all cores but one.",
        "",
        *dict.fromkeys(f"    {one['command']}" for one in domains.values()),
        "",
        f"![Speed over vLLM alone, and what was accepted]({PICTURE})",
    ]
    heads = ["domain", "", "head rows", "tokens/s", "over vLLM alone", "acceptance length"]
    heads += ["accepted by position", "texts as without a draft"]
    for at_once in map(str, settings["concurrency"]):
        lines += ["", f"## {at_once} at a time", ""]
        rows = [
            row
            for name, one in domains.items()
            for row in domain_rows(name, one, at_once, settings["prompts"])
        ]
        lines += table(heads, rows)
        lines += ["", "The draft's speed over that of the same draft with every row:", ""]
        lines += [
            f"- {name}: {ratio_line(one['cells'][at_once]['trimmed_over_full'])}"
            for name, one in domains.items()
        ]
    lines += [
        "",
        f"Texts in {settings['dtype']} differ at near-ties: checking several tokens at once "
        "rounds otherwise than one by one.",
    ]
    for name, one in domains.items():
        lines += [
            "",
            f"{name}: {one['draft']}; {one['data']} ({one['data_fingerprint']}); "
            f"{settings['prompts']} prompts, {passed_over(one, settings['max_prompt_tokens'])}",
        ]
    return "\n".join([*lines, ""])


def draw(found: Mapping[str, Any]) -> Any:
    """Draw the speed over vLLM alone, and what was accepted by position."""
    from matplotlib.figure import Figure

    domains, every = found["domains"], list(map(str, found["settings"]["concurrency"]))
    figure = Figure(figsize=(4.5 * (len(every) + 1), 4), layout="constrained")
    axes = figure.subplots(1, len(every) + 1)
    for place, at_once in zip(axes, every, strict=False):
        for shift, way in ((-0.2, FULL), (0.2, TRIMMED)):
            ratios = [one["cells"][at_once]["over_plain"][way] for one in domains.values()]
            middle = [ratio["ratio"] for ratio in ratios]
            # The ratio of medians may lie outside of the rounds' own ratios.
            low = [max(0, ratio["ratio"] - ratio["low"]) for ratio in ratios]
            high = [max(0, ratio["high"] - ratio["ratio"]) for ratio in ratios]
            at = [number + shift for number in range(len(ratios))]
            place.bar(at, middle, 0.38, yerr=[low, high], capsize=3, label=WORDS[way])
        place.axhline(1, color="black", linewidth=1)
        place.set_ylim(0, 1.3 * place.get_ylim()[1])  # room for the legend
        place.set_xticks(range(len(domains)), list(domains), rotation=20)
        place.set_ylabel("tokens/s over vLLM alone")
        place.set_title(f"{at_once} at a time")
        place.legend(fontsize=7, loc="upper left")
    for name, one in domains.items():
        shown = None
        for way, style in ((TRIMMED, "-"), (FULL, "--")):
            shares = one["cells"][every[0]]["acceptance"][way]["by_position"]
            (shown,) = axes[-1].plot(
                range(1, len(shares) + 1),
                shares,
                style,
                marker="o",
                markersize=3,
                color=None if shown is None else shown.get_color(),
                label=f"{name}, {way}",
            )
    axes[-1].set_xticks(range(1, found["settings"]["draft_length"] + 1))
    axes[-1].set_ylim(0, 1)
    axes[-1].set_xlabel("drafted token")
    axes[-1].set_ylabel("share of the drafts with it accepted")
    axes[-1].legend(fontsize=7, handlelength=4)
    for place in axes:
        place.grid(alpha=0.3)
    return figure
