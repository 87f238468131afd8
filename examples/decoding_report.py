"""What bench_decoding.py tells: a table for each draft and set, and the paper's figures beside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench_parts import change, machine_line, shown, spread, table

# arXiv 2603.05210; throughput and latency are one measurement there: 1 / 1.196 = 0.836.
PAPER = {"ner": (6_521, 0.196, -0.164), "function_calling": (4_380, 0.100, -0.091)}
PAPER_OOD = (0.022, 0.067)
PAPER_OOD_SETS = ("mt_bench", "gsm8k", "humaneval", "math500", "aime24")

WAYS = {
    "trimmed": "the draft as it was trained, with the vocabulary that the search chose",
    "full": "the same with rows for the whole vocabulary (`extend`)",
    "fixed": "the same with so many tokens of general text, the most frequent and required ones",
    "trained_full": "a draft that was trained with the whole vocabulary",
    "retrimmed": "that one, cut to the ids of `trimmed`",
    "lookup": "Transformers' prompt lookup, without a draft",
    "assistant": "Transformers' assisted decoding with a small model",
}

COMPARABLE = """\
What can be compared is the sign and the order of size, no more. The paper's target is
Llama-3.1-8B-Instruct (V = 128,256), its drafts were trained by SpecForge and served by SGLang, on
an A100 as we are told at second hand. Its batch size, its draft length and whether it compares
with the whole vocabulary or with EAGLE-3's usual 32,000 tokens are not known to us: hence both
here. Its latency and throughput are one measurement (1 / 1.196 = 0.836, 1 / 1.100 = 0.909), and so
are ours. Its domains are other data.

Two things may make our gains larger than they would be there. The smaller the target, the larger a
part of a round is its draft's head, on a CPU above all. And `full` and `fixed` are the same draft
with rows of the target that it was not trained with, which costs them acceptance; of the wide
heads only `trained_full`, where it was measured, has rows that were trained. A smaller V than
128,256 makes gains smaller: the head of the whole vocabulary costs in proportion."""


def beside_the_paper(sets: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the paper's headline figures and ours, where they are measured.

    Args:
        sets: figures by case; those of a domain's own test prompts are `NAME_on_NAME`.

    Returns:
        Rows: what is claimed, the paper's change as low and high, and our ratios by what the
        trimmed draft is compared with, none if it is not measured.
    """
    rows = []
    for name, (k, faster, shorter) in PAPER.items():
        one = sets.get(f"{name}_on_{name}")
        for claim, paper, key in (
            ("throughput", faster, "trimmed_over"),
            ("latency", shorter, "seconds_of_trimmed_over"),
        ):
            rows.append(
                {
                    "claim": f"{name}: {claim}",
                    "paper_k": k,
                    "paper": [paper, paper],
                    "ours": None if one is None else _against_others(one, key),
                }
            )
    far = {one["set"]: one for one in sets.values() if one["out_of_distribution"]}
    for name in dict.fromkeys((*PAPER_OOD_SETS, *far)):
        of_paper = name in PAPER_OOD_SETS
        rows.append(
            {
                "claim": f"out of distribution, {name}: throughput",
                "paper_k": 13_264,
                "paper": [*PAPER_OOD] if of_paper else None,
                "ours": _against_others(far[name], "trimmed_over") if name in far else None,
            }
        )
    return rows


def _against_others(one: Mapping[str, Any], key: str) -> dict[str, Any]:
    kinds = ("full", "fixed", "trained_full")
    return {name: way[key] for name, way in one["ways"].items() if name.startswith(kinds)}


def markdown(found: Mapping[str, Any]) -> str:
    """Return what people read."""
    sets = found["sets"]
    longest = found["longest_prompt"]
    lines = [
        f"# Trained drafts for {found['target']}, in their domain and outside",
        "",
        f"{found['prompts']} prompts of each set, evenly from all over its file; greedy, at most "
        f"{found['max_new_tokens']} new tokens, n = {found['draft_length']} drafted a round by "
        f"every way, no threshold, {found['dtype']}. All ways take turns on each prompt; medians "
        "over the prompts with 95 % bootstrap intervals. V = "
        f"{found['vocab_size']:,}. `plain` is the target alone, in the faster of bfloat16 and "
        "float32.",
        "",
        *dict.fromkeys(machine_line(one["machine"]) for one in sets.values()),
        "",
        f"    {found['command']}",
        "",
        *(f"- `{way}`: {words}" for way, words in WAYS.items() if _is_there(way, sets)),
    ]
    if longest is not None:
        left_out = ", ".join(f"{n} {one['left_out']}" for n, one in sets.items())
        lines += ["", f"Prompts of more than {longest:,} characters are left out: {left_out}."]
    if found["not_yet_measured"]:
        lines += ["", f"Not measured yet: {', '.join(found['not_yet_measured'])}."]
    lines += ["", "![Speed-ups](report.png)", "", "## Beside the paper", "", *_claims(found)]
    lines += ["", COMPARABLE]
    for name, one in sets.items():
        lines += ["", f"## {name}", "", *_one_set(one, found["dtype"])]
    return "\n".join([*lines, ""])


def _is_there(way: str, sets: Mapping[str, Any]) -> bool:
    names = {name.partition("_")[0] if name.startswith("fixed") else name for name in _names(sets)}
    return way in names


def _names(sets: Mapping[str, Any]) -> list[str]:
    """List every way of any set, in their order."""
    return list(dict.fromkeys(name for one in sets.values() for name in one["ways"]))


def _claims(found: Mapping[str, Any]) -> list[str]:
    others = dict.fromkeys(n for row in found["beside_the_paper"] for n in row["ours"] or ())
    rows = []
    for row in found["beside_the_paper"]:
        paper = "" if row["paper"] is None else _percents(row["paper"])
        ours = row["ours"]
        cells = ["not measured" for _ in others]
        if ours is not None:
            cells = [change(ours[name]) if name in ours else "" for name in others]
        rows.append([row["claim"], paper, f"{row['paper_k']:,}", *cells])
    heads = ["trimming", "the paper", "its k", *(f"ours, over `{name}`" for name in others)]
    return table(heads, rows)


def _percents(pair: list[float]) -> str:
    low, high = (f"{100 * value:+.1f} %" for value in pair)
    return low if low == high else f"{low} to {high}"


def _one_set(one: Mapping[str, Any], dtype: str) -> list[str]:
    plain = ["plain", "", f"{one['plain_tokens_per_second']:.1f}", "1.00", *[""] * 6]
    rows = [plain]
    for name, way in one["ways"].items():
        rows.append(
            [
                name,
                shown(way["head_rows"], ",d"),
                f"{way['tokens_per_second']:.1f}",
                spread(way["over_plain"]),
                "" if name == "trimmed" else spread(way["trimmed_over"]),
                shown(way["acceptance_length"], ".2f"),
                shown(way["draft_ms"], ".2f"),
                shown(way["head_share"], ".1%"),
                shown(way["out_of_vocabulary"], ".1%"),
                shown(way["identical"], ".0%"),
            ]
        )
    heads = ["way", "head rows", "tokens/s", "over plain", "`trimmed` over it"]
    heads += ["acceptance length", "draft ms/token", "head's share of the time"]
    heads += ["out of vocabulary", f"identical in {dtype}"]
    same, number = one["identical_in_float32"]
    lines = [
        f"{one['prompts']} prompts of {one['data']} ({one['data_sha256']}), "
        f"{one['prompt_tokens']:.0f} tokens long (median); {one['new_tokens']:,} new tokens by "
        f"the target alone, {one['baseline']}.",
        "",
        *table(heads, rows),
        "",
        f"- texts of `trimmed` in float32 that are the target's own: {same} of {number}",
    ]
    if "retrimmed" in one["ways"]:
        way = one["ways"]["retrimmed"]
        length = way["acceptance_length_of_trimmed_over"]
        lines.append(
            "- trained with the trimmed vocabulary over trimmed after training: speed "
            f"{spread(way['trimmed_over'])}, acceptance length {length['ratio']:.2f} "
            f"({length['low']:.2f} to {length['high']:.2f})"
        )
    notes = [
        f"trimmed{note.removeprefix('draft')}" if note.startswith("draft:") else note
        for note in one["notes"]
    ]
    return [*lines, *(f"- note: {note}" for note in notes)]


def draw(found: Mapping[str, Any]) -> Any:
    """Draw the speed-up over the target alone, of every way on every set."""
    from matplotlib.figure import Figure

    sets, names = found["sets"], _names(found["sets"])
    figure = Figure(figsize=(9, 1.6 + 0.22 * len(sets) * (len(names) + 1)), layout="constrained")
    axes = figure.subplots()
    for number, name in enumerate(names):
        points = [
            (place, one["ways"][name]["over_plain"])
            for place, one in enumerate(sets.values())
            if name in one["ways"]
        ]
        medians = [point["median"] for _, point in points]
        below = [point["median"] - point["low"] for _, point in points]
        above = [point["high"] - point["median"] for _, point in points]
        heights = [place + 0.8 * (number + 0.5) / len(names) - 0.4 for place, _ in points]
        axes.errorbar(medians, heights, xerr=[below, above], fmt="o", capsize=2, label=name)
    axes.axvline(1, color="black", linewidth=0.8, linestyle=":")
    for place in range(1, len(sets)):
        axes.axhline(place - 0.5, color="grey", linewidth=0.5)
    axes.set_yticks(range(len(sets)), [name.replace("_on_", " on ") for name in sets])
    axes.invert_yaxis()
    axes.set_xlabel("tokens/s over the target alone: median and 95 % interval")
    axes.grid(axis="x", alpha=0.3)
    figure.legend(loc="outside lower center", ncols=4, fontsize=8)
    return figure
