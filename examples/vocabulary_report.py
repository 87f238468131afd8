"""The report of bench_vocabulary.py, written from its figures, and what such reports share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from bench_results import table
from paper_figures import PAPER_ALPHA, PAPER_FLOOR, PAPER_K, PAPER_OOD, PAPER_WIDTH
from vocabulary_rivals import WAYS
from vocabulary_runs import GENERAL


def markdown(found: Mapping[str, Any]) -> str:
    """Return what people read."""
    facts = found["facts"]
    lines = [
        f"# Vocabularies for {facts['target']}",
        "",
        f"V = {facts['vocab_size']:,}; an EAGLE-3 draft's step by operations, as in the paper; "
        f"{facts['required']} required ids are part of every k of this package. Coverage is the "
        "share of the tokens that the assistant says, with a 95 % bootstrap interval over blocks "
        "of conversations. *Held-out*: a fifth of the conversations of train.jsonl, which chose "
        "nothing; *test*: test.jsonl, in some domains other data.",
        "",
        *made_by(found),
        *left_out(found.get("unanswered", ())),
        *chosen(found),
        *as_published(found),
        *every_setting(found["domains"]),
        *other_ways(found["domains"]),
        *on_each_other(found["crossed"], list(found["domains"])),
        *out_of_distribution(found["crossed"]),
    ]
    return "\n".join([*lines, ""])


def made_by(found: Mapping[str, Any]) -> list[str]:
    """Tell the data, the versions and the command."""
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    return [f"Data: {found['data']}; {versions}", "", f"    {found['command']}", ""]


def left_out(unanswered: Sequence[str]) -> list[str]:
    """Tell the files of tests and ood sets that could judge nothing."""
    if not unanswered:
        return []
    return [f"Left out, for nobody answers in them: {', '.join(unanswered)}.", ""]


def chosen(found: Mapping[str, Any]) -> list[str]:
    """Tell the vocabulary of each domain, with the paper's setting."""
    rows = []
    for name, one in found["domains"].items():
        exact = cell_of(one, PAPER_ALPHA, PAPER_FLOOR)["exact"]
        rows.append(
            [
                name,
                f"{one['tokens']['search']:,}",
                f"{one['sayable']:,}",
                f"{exact['k']:,}",
                f"{exact['reduction']:.1%}",
                percent(exact["search"]),
                percent(exact["heldout"]),
                percent(exact["test"]),
            ]
        )
    heads = ["domain", "tokens counted", "ids counted or required", "k*", "of a step saved"]
    return [
        "## The vocabulary of each domain",
        "",
        "Weight 0.5, no least coverage: the paper's setting.",
        "",
        *table([*heads, "search", "held-out", "test"], rows),
        "",
        "With weight 0.5 an id pays for its row if it is more than one token in "
        f"{tokens_a_row(found['facts']['latency']):,.0f}: where fewer were counted, k* is every "
        "id that was seen. More data adds ids up to so many tokens; beyond, ids that stay rare "
        "drop out again.",
        "",
    ]


def as_published(found: Mapping[str, Any]) -> list[str]:
    """Tell what a search as in the paper's published run finds."""
    heads = ["domain", "exact k*", "TPE k*", "TPE's utility below the exact", "held-out", "paper"]
    rows = [
        [
            name,
            f"{one['paper']['exact']['k']:,}",
            f"{one['paper']['tpe']['k']:,}",
            f"{one['paper']['tpe']['gap_to_exact']:.4%}",
            percent(one["paper"]["exact"]["heldout"], interval=False),
            f"{PAPER_K[name]:,}" if name in PAPER_K else "",
        ]
        for name, one in found["domains"].items()
    ]
    return [
        "## As the paper's published run",
        "",
        f"No required ids, 50 to 50,000 tokens, {found['trials']} trials of TPE with seed 42. The "
        f"paper's data sets are others, and its target has V = {PAPER_WIDTH:,}.",
        "",
        *table(heads, rows),
        "",
    ]


def every_setting(domains: Mapping[str, Any]) -> list[str]:
    """Tell the sizes that every weight and least coverage choose."""
    cells = next(iter(domains.values()))["grid"]
    alphas = dict.fromkeys(cell["alpha"] for cell in cells)
    floors = dict.fromkeys(cell["min_coverage"] for cell in cells)
    rows = []
    for name, one in domains.items():
        for floor in floors:
            shown = [
                f"{cell['exact']['k']:,} / {cell['tpe']['k']:,}; "
                f"{percent(cell['exact']['heldout'], interval=False)}"
                for cell in (cell_of(one, alpha, floor) for alpha in alphas)
            ]
            rows.append([name, f"{floor:.0%}" if floor else "none", *shown])
    gaps = [cell["tpe"]["gap_to_exact"] for one in domains.values() for cell in one["grid"]]
    return [
        "## Every weight and least coverage",
        "",
        "Exact k* / TPE k*, and held-out coverage of the exact one.",
        "",
        *table(["domain", "least coverage", *(f"weight {alpha}" for alpha in alphas)], rows),
        "",
        f"TPE ends {np.median(gaps):.4%} (median; at most {max(gaps):.4%}) below the exact "
        f"utility in {len(gaps)} studies; it is exact in {sum(gap == 0 for gap in gaps)}.",
        "",
    ]


def other_ways(domains: Mapping[str, Any]) -> list[str]:
    """Tell what the vocabularies cover that others would choose."""
    names = [way for way in WAYS if any(way in one["ways"] for one in domains.values())]
    rows = []
    for name, one in domains.items():
        ways = [one["ways"].get(way) for way in names]
        covered = (percent(way and way["heldout"], interval=False) for way in ways)
        saved = (f"{way['reduction']:.1%}" if way else "" for way in ways)
        missing = (str(way["required_missing"]) if way else "" for way in ways)
        rows += [
            [name, *covered],
            ["of a step saved", *saved],
            ["required ids missing", *missing],
        ]
    return [
        "## Other ways to choose, judged alike",
        "",
        "All choose from the same conversations (raw text: from those of all domains together; "
        "FR-Spec itself counts a web corpus) and are judged on the same held-out ones, at the k* "
        "above; the fixed ones at 32,000. A vocabulary that misses required ids may be unable to "
        "end a turn or to spell what has no piece of its own.",
        "",
        *(f"- `{way}`: {words}" for way, words in WAYS.items()),
        "",
        *table(["held-out coverage", *names], rows),
        "",
    ]


def on_each_other(crossed: Mapping[str, Any], domains: Sequence[str]) -> list[str]:
    """Tell what each vocabulary covers of every domain and ood set."""
    ood = list(next(iter(crossed.values()))["ood"])
    rows = [
        [
            f"{name} ({row['k']:,})",
            *(percent(row["domains"][other], interval=False) for other in domains),
            *(percent(row["ood"][other], interval=False) for other in ood),
        ]
        for name, row in crossed.items()
    ]
    return [
        "## Each vocabulary on every domain",
        "",
        "![Coverage](heat_map.png)",
        "",
        *table(["vocabulary of (k*)", *domains, *(f"ood: {name}" for name in ood)], rows),
    ]


def out_of_distribution(crossed: Mapping[str, Any]) -> list[str]:
    """Tell what `general`'s vocabulary covers of the ood sets, where there are both."""
    row = crossed.get(GENERAL)
    if row is None or not row["ood"]:
        return []
    return [
        "",
        "## Out of distribution",
        "",
        f"The vocabulary of `{GENERAL}` (k* = {row['k']:,}) on reference answers of sets that "
        "it was not counted on:",
        "",
        *table(["set", "coverage"], [[name, percent(one)] for name, one in row["ood"].items()]),
        "",
        f"Weighted by tokens: {row['ood_weighted']:.2%}. The paper: {PAPER_OOD:.1%} of the "
        f"tokens that its target generates there, with {PAPER_K[GENERAL]:,} tokens.",
    ]


# --- what such reports share -----------------------------------------------------------------


def percent(found: Mapping[str, Any] | None, interval: bool = True) -> str:
    """Write a coverage for people."""
    if found is None:
        return ""
    text = f"{found['coverage']:.2%}"
    return text + (f" ({found['low']:.2%} to {found['high']:.2%})" if interval else "")


def tokens_a_row(latency: Mapping[str, Any]) -> float:
    """Return how many tokens an id may be one of to be worth its row, with weight 0.5.

    One token's share of the coverage must be more than one row's share of the step's cost.
    """
    head = latency["head_costs"][-1]
    return float((sum(latency["body"].values()) + head) / (head / latency["vocab_size"]))


def cell_of(one: Mapping[str, Any], alpha: float, floor: float) -> dict[str, Any]:
    """Return one cell of a domain's grid."""
    found: dict[str, Any] = next(
        cell for cell in one["grid"] if (cell["alpha"], cell["min_coverage"]) == (alpha, floor)
    )
    return found
