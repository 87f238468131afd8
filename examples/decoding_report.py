"""What bench_decoding.py tells: a table for each draft and set, and the paper's figures beside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench_results import change, machine_lines, shown, spread, table
from paper_figures import (
    PAPER_ALPHA,
    PAPER_FAR_GAIN,
    PAPER_FAR_SETS,
    PAPER_GAIN,
    PAPER_K,
    PAPER_WIDTH,
)

WAYS = {
    "trimmed": "the draft as it was trained",
    "optimised": "the same with the k* ids that the search chooses of the domain's counts: the "
    f"best utility at alpha = {PAPER_ALPHA}, required ids included, with no floor under k",
    "full": "the same with rows for the whole vocabulary (`extend`)",
    "fixed": "the same with so many tokens of general text, the most frequent and required ones",
    "trained_full": "a draft that was trained with the whole vocabulary",
    "retrimmed": "that one, cut to the ids of `trimmed`",
    "lookup": "Transformers' prompt lookup, without a draft",
    "assistant": "Transformers' assisted decoding with a small model",
}

COLUMNS = """\
Tokens a forward: new tokens over forward passes of the target, both without the first of each
prompt, which reads it. The acceptance length is 1 + accepted over verified drafts. `lookup` often
has nothing to propose; such rounds count as forwards, but verify no draft, so it is given no
acceptance length: one of its lucky rounds alone would look like more than it is."""

_ONE_MEASUREMENT = ", ".join(
    f"1 / {1 + faster:.3f} = {1 + shorter:.3f}" for faster, shorter in PAPER_GAIN.values()
)
COMPARABLE = f"""\
What can be compared is the sign and the order of size, no more. The paper's target is
Llama-3.1-8B-Instruct (V = {PAPER_WIDTH:,}), its drafts were trained by SpecForge and served by
SGLang, on an A100 as we are told at second hand. Its batch size, its draft length and whether it
compares with the whole vocabulary or with EAGLE-3's usual 32,000 tokens are not known to us: hence
both here. Its latency and throughput are one measurement ({_ONE_MEASUREMENT}), and
so are ours. Its domains are other data.

Two things may make our gains larger than they would be there. The smaller the target, the larger a
part of a round is its draft's head, on a CPU above all. And `full` and `fixed` are the same draft
with rows of the target that it was not trained with, which costs them acceptance; of the wide
heads only `trained_full`, where it was measured, has rows that were trained. A smaller V than
{PAPER_WIDTH:,} makes gains smaller: the head of the whole vocabulary costs in proportion."""

# --- beside the paper ------------------------------------------------------------------------


def beside_the_paper(sets: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the paper's headline figures and ours, where they are measured.

    Args:
        sets: figures by case; those of a domain's own test prompts are `NAME_on_NAME`.

    Returns:
        Rows: what is claimed; the domain of the draft that is measured for it; the paper's k and
        its change as low and high, where it has them; and ours by vocabulary: k, and the ratios by
        what it is compared with. None is not measured.
    """
    rows = []
    for name, gains in PAPER_GAIN.items():
        one = sets.get(f"{name}_on_{name}")
        for claim, paper, kind in zip(
            ("throughput", "latency"), gains, ("", "seconds_of_"), strict=True
        ):
            rows.append(
                {
                    "claim": f"{name}: {claim}",
                    "draft": name,
                    "paper_k": PAPER_K[name],
                    "paper": [paper, paper],
                    "ours": None if one is None else _ours(one, kind),
                }
            )
    far: dict[str, list[Mapping[str, Any]]] = {name: [] for name in PAPER_FAR_SETS}
    for one in sets.values():
        if one["out_of_distribution"]:
            far.setdefault(one["set"], []).append(one)
    for name, measured in far.items():
        of_paper = name in PAPER_FAR_SETS
        facts = {
            "paper_k": PAPER_K["general"] if of_paper else None,
            "paper": [*PAPER_FAR_GAIN] if of_paper else None,
        }
        claim = f"out of distribution, {name}: throughput"
        rows += [
            # Several drafts may be measured on a set.
            {
                "claim": f"{claim} (draft `{one['draft']}`)",
                "draft": one["draft"],
                **facts,
                "ours": _ours(one, ""),
            }
            for one in measured
        ] or [{"claim": claim, "draft": "general", **facts, "ours": None}]
    return rows


def _ours(one: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return what trimmed vocabularies are worth against wide ones, one after the other."""
    wide = ("full", "fixed", "trained_full")
    found = {}
    for name in ("optimised", "trimmed"):
        if name in one["ways"]:
            found[name] = {
                "k": one["ways"][name]["head_rows"],
                "over": {
                    other: way[f"{kind}{name}_over"]
                    for other, way in one["ways"].items()
                    if other.startswith(wide)
                },
            }
    return found


def _claims(found: Mapping[str, Any]) -> list[str]:
    rows, claimed = [], found["beside_the_paper"]
    others = dict.fromkeys(
        name for row in claimed for one in (row["ours"] or {}).values() for name in one["over"]
    )
    for row in claimed:
        paper = "" if row["paper"] is None else _percents(row["paper"])
        head = [row["claim"], paper, shown(row["paper_k"], ",d")]
        if row["ours"] is None:
            how = f"`make bench-decoding DRAFTS={row['draft']}=FOLDER` measures it"
            rows.append([*head, f"not measured: {how}", *[""] * len(others)])
        for name, one in (row["ours"] or {}).items():
            cells = [
                change(one["over"][other]) if other in one["over"] else "" for other in others
            ]
            rows.append([*head, f"`{name}`, k = {one['k']:,}", *cells])
    heads = ["trimming", "the paper", "its k", "ours", *(f"over `{name}`" for name in others)]
    return table(heads, rows)


def _percents(pair: list[float]) -> str:
    low, high = (f"{100 * value:+.1f} %" for value in pair)
    return low if low == high else f"{low} to {high}"


# --- all sets --------------------------------------------------------------------------------


def markdown(found: Mapping[str, Any]) -> str:
    """Return what people read."""
    sets, settings = found["sets"], found["settings"]
    longest = settings["longest_prompt"]
    lines = [
        f"# Trained drafts for {found['target']}, in their domain and outside",
        "",
        f"{settings['prompts']} prompts of each set, evenly from all over its file; greedy, at "
        f"most {settings['max_new_tokens']} new tokens, n = {settings['draft_length']} drafted a "
        f"round by every way, no threshold, {settings['dtype']}. All ways take turns on each "
        "prompt; medians over the prompts with 95 % bootstrap intervals. V = "
        f"{settings['vocab_size']:,}. `plain` is the target alone, in the faster of bfloat16 and "
        "float32.",
        "",
        *machine_lines({name: one["machines"] for name, one in sets.items()}),
        "",
        *dict.fromkeys(f"    {one['command']}" for one in sets.values()),
        "",
        *(f"- `{way}`: {words}" for way, words in WAYS.items() if _is_there(way, sets)),
        "",
        COLUMNS,
    ]
    if longest is not None:
        left_out = ", ".join(f"{n} {one['left_out']}" for n, one in sets.items())
        lines += ["", f"Prompts of more than {longest:,} characters are left out: {left_out}."]
    torn = [f"{n} {one['unreadable']}" for n, one in sets.items() if one.get("unreadable")]
    if torn:
        lines += [
            "",
            f"Rows without a prompt that can be read are passed over: {', '.join(torn)}.",
        ]
    if found["not_yet_measured"]:
        lines += ["", f"Not measured yet: {', '.join(found['not_yet_measured'])}."]
    lines += ["", "![Speed-ups](report.png)", "", "## Beside the paper", "", *_claims(found)]
    lines += ["", COMPARABLE]
    for name, one in sets.items():
        lines += ["", f"## {name}", "", *_one_set(one, settings["dtype"])]
    return "\n".join([*lines, ""])


def _is_there(way: str, sets: Mapping[str, Any]) -> bool:
    names = {name.partition("_")[0] if name.startswith("fixed") else name for name in _names(sets)}
    return way in names


def _names(sets: Mapping[str, Any]) -> list[str]:
    """List every way of any set, in their order."""
    return list(dict.fromkeys(name for one in sets.values() for name in one["ways"]))


# --- one set ---------------------------------------------------------------------------------


def _one_set(one: Mapping[str, Any], dtype: str) -> list[str]:
    plain = ["plain", "", f"{one['plain_tokens_per_second']:.1f}", "1.00", "", "1.00", *[""] * 5]
    rows = [plain]
    for name, way in one["ways"].items():
        rows.append(
            [
                name,
                shown(way["head_rows"], ",d"),
                f"{way['tokens_per_second']:.1f}",
                spread(way["over_plain"]),
                "" if name == "trimmed" else spread(way["trimmed_over"]),
                shown(way["tokens_a_forward"], ".2f"),
                shown(way["acceptance_length"], ".2f"),
                shown(way["draft_ms"], ".2f"),
                shown(way["head_share"], ".1%"),
                shown(way["out_of_vocabulary"], ".1%"),
                shown(way["identical"], ".0%"),
            ]
        )
    heads = ["way", "head rows", "tokens/s", "over plain", "`trimmed` over it", "tokens a forward"]
    heads += ["acceptance length", "draft ms/token", "head's share of the time"]
    heads += ["out of vocabulary", f"identical in {dtype}"]
    same, number = one["identical_in_float32"]
    lines = [
        f"{one['prompts']} prompts of {one['data']} ({one['data_sha256'][:16]}), "
        f"{one['prompt_tokens']:.0f} tokens long (median); {one['new_tokens']:,} new tokens by "
        f"the target alone, {one['baseline']}.",
        "",
        *table(heads, rows),
        "",
        f"- `trimmed`: as it was trained, {one['ways']['trimmed']['head_rows']:,} rows",
        f"- {_optimised(one['optimised'])}",
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


def _optimised(chosen: Mapping[str, Any]) -> str:
    counts = f"{chosen['counted']} ({chosen['counts_fingerprint'][:12]})"
    if chosen["as_trained"]:
        return f"the search chooses the same ids of {counts}: there is no other `optimised`"
    return f"`optimised`: k* = {chosen['k']:,} of {counts}"


# --- plot ------------------------------------------------------------------------------------


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
