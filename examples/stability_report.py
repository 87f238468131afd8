"""The report of bench_stability.py, written from its figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench_results import table
from paper_figures import PAPER_BAND, PAPER_FROM, PAPER_WIDTH
from vocabulary_report import made_by, tokens_a_row

K_WITHIN, COVERAGE_WITHIN = 0.05, 0.005  # a share of k*, and a difference


def markdown(found: Mapping[str, Any]) -> str:
    """Return what people read."""
    facts = found["facts"]
    low, high = PAPER_BAND
    lines = [
        f"# How many conversations a vocabulary takes, {facts['target']}",
        "",
        f"V = {facts['vocab_size']:,}; weight 0.5, no least coverage, an EAGLE-3 draft's step by "
        f"operations; {facts['required']} required ids are part of k. {found['resamples']} "
        "drawings of each number of conversations, without replacement; the median of k* and of "
        "the held-out coverage, with quartiles.",
        "",
        "Settled: from which number on (at most half of all) the quartiles of k* lie within "
        f"{K_WITHIN:.0%} of the k* of all conversations, those of the coverage within "
        f"{COVERAGE_WITHIN * 100:.1f} percentage points of theirs.",
        "",
        *made_by(found),
        "![k* and coverage against the number of conversations](stability.png)",
        "",
    ]
    rows = []
    for name, one in found["domains"].items():
        last = one["points"][-1]
        rows.append(
            [
                name,
                f"{last['size']:,}",
                f"{last['tokens']['median']:,.0f}",
                f"{last['k']['median']:,.0f}",
                f"{last['coverage']['median']:.2%}",
                *(f"{at:,}" if at else "not settled" for at in one["settled"].values()),
            ]
        )
    heads = ["domain", "conversations", "tokens", "k* of all", "held-out coverage"]
    lines += table([*heads, "k* settled from", "coverage settled from"], rows)
    lines += [
        "",
        f"The paper reports that k* stays between {low:,} and {high:,} from about "
        f"{PAPER_FROM:,} conversations on, of 1,000 to 500,000 (V = {PAPER_WIDTH:,}, "
        "Open-PerfectBlend, no required ids). That data is not here: ours are other and fewer "
        "conversations, so it is the shape that can be compared, not the number. k* moves in "
        "steps: an id pays for its row if it was counted more than (tokens / "
        f"{tokens_a_row(facts['latency']):,.0f}) times, and counts are whole numbers.",
    ]
    for name, one in found["domains"].items():
        lines += ["", f"## {name}", ""]
        rows = [
            [
                f"{point['size']:,}",
                f"{point['tokens']['median']:,.0f}",
                "{median:,.0f} ({q25:,.0f} to {q75:,.0f})".format(**point["k"]),
                "{median:.2%} ({q25:.2%} to {q75:.2%})".format(**point["coverage"]),
            ]
            for point in one["points"]
        ]
        lines += table(["conversations", "tokens", "k*", "held-out coverage"], rows)
    return "\n".join([*lines, ""])
