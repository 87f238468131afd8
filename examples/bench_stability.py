"""How many conversations it takes until the chosen vocabulary stays the same.

    python examples/bench_stability.py --data domains --target smollm2

From the search part of each domain's train.jsonl, and of all domains put together (`all domains`),
100, 200, 500 and so on conversations are drawn without replacement, up to all of them, 20 times
each with fixed seeds. Each drawing chooses its own vocabulary, with the paper's weight 0.5 and no
least coverage; the report gives the median and the quartiles of k* and of the coverage of held-out
conversations, which are always the same.

k* is settled at the smallest number of conversations, at most half of those there are, from which
on its quartiles lie within 5 % of the k* of all conversations; the coverage, from which on its
quartiles lie within half a percentage point of theirs. Drawings of more than half share most of
their conversations, so that they agree whatever the data is like.

`--data` and `--target` are those of `bench_vocabulary.py`. One target and the nine domains of
`build_domains.py` take about a minute of one core, counting included; each conversation is
tokenised once. The same command goes on where it was interrupted. OUTPUT/<target>/ then holds
report.md, figures.json and stability.png.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from bench_files import kept_rows
from bench_results import FIGURES, REPORT, command_line, digest_of, write_figures
from conversation_counts import Conversations, read_conversations
from paper_figures import PAPER_ALPHA, PAPER_FLOOR
from stability_report import COVERAGE_WITHIN, K_WITHIN, markdown
from vocabulary_plots import draw_stability
from vocabulary_runs import (
    ALL,
    Domain,
    check_parts,
    domains_in,
    measured_already,
    parsed,
    targets_of,
    versions,
    write_report,
)
from vocabulary_targets import Target

from vtrim_hf import LatencyModel, TokenCounts
from vtrim_hf.search_space import build_space

SIZES = (100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000)
RESAMPLES = 20
SCRIPT = "bench_stability.py"
FORMAT = 1  # raise it when a target would be measured or told otherwise


def sizes_up_to(number: int) -> list[int]:
    """List how many conversations are drawn: every known size below all of them, and all."""
    return [size for size in SIZES if size < number] + [number]


def drawn(
    conversations: Conversations,
    size: int,
    resample: int,
    held: np.ndarray,
    latency: LatencyModel,
    required: Sequence[int],
) -> dict[str, Any]:
    """Choose a vocabulary from some conversations of the search part, and judge it.

    Args:
        conversations: all there are.
        size: how many are drawn.
        resample: which drawing it is.
        held: int64 [V], the counts of the held-out part.
        latency: what a draft's step costs.
        required: ids that are always kept.

    Returns:
        `k`, the held-out `coverage`, and how many `tokens` were counted.
    """
    pool = np.flatnonzero(~conversations.heldout)
    chosen = np.zeros(conversations.heldout.size, dtype=bool)
    # The seed is of the size and the number alone: more resamples repeat the first ones.
    rng = np.random.default_rng([size, resample])
    chosen[rng.choice(pool, size, replace=False)] = True
    counted = conversations.summed(chosen, latency.vocab_size)
    space = build_space(
        TokenCounts.from_counts(counted),
        latency,
        required=required,
        alpha=PAPER_ALPHA,
        min_coverage=PAPER_FLOOR,
        domain_floors=None,
        k_min=50,
        k_max=None,
        multiple_of=latency.multiple_of,
    )
    k = space.best_size()
    return {
        "k": k,
        "coverage": float(held[space.ranked[:k]].sum() / held.sum()),
        "tokens": int(counted.sum()),
    }


def quartiles(values: Sequence[float]) -> dict[str, float]:
    """Return the median and the quartiles."""
    low, middle, high = np.percentile(values, [25, 50, 75])
    return {"median": float(middle), "q25": float(low), "q75": float(high)}


def settled(points: Sequence[Mapping[str, Any]], key: str, within: float) -> int | None:
    """Return the number of conversations from which on a figure is settled, if it is.

    Args:
        points: by ascending `size`, with the figure as `quartiles` gives it; the last is that of
            all conversations.
        key: the figure.
        within: how far its quartiles may lie from that of all conversations.
    """
    last = points[-1]
    found = None
    for point in reversed(points[:-1]):
        ends = (point[key]["q25"], point[key]["q75"])
        if max(abs(value - last[key]["median"]) for value in ends) > within:
            break
        found = point["size"]
    return found if found is not None and found <= last["size"] / 2 else None


def both_settled(points: Sequence[Mapping[str, Any]]) -> dict[str, int | None]:
    """Return from which number of conversations on k* and the coverage are settled."""
    return {
        "k": settled(points, "k", K_WITHIN * points[-1]["k"]["median"]),
        "coverage": settled(points, "coverage", COVERAGE_WITHIN),
    }


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a domain's figures by number of conversations, and where it is settled."""
    points = [
        {
            "size": row["size"],
            **{key: quartiles([one[key] for one in row["drawn"]]) for key in row["drawn"][0]},
            "k_drawn": [one["k"] for one in row["drawn"]],
        }
        for row in sorted(rows, key=lambda row: row["size"])
    ]
    return {"points": points, "settled": both_settled(points)}


def measure(
    target: Target,
    domains: Sequence[Domain],
    data: Path,
    output: Path,
    *,
    resamples: int,
    heldout: float,
    command: str,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Measure one target, or go on; what the same call has finished is only read.

    Raises:
        SystemExit: if a domain has no answers in one of its parts.
    """
    call = {
        "format": FORMAT,
        **target.facts,
        "domains": {domain.name: domain.identity[0] for domain in domains},
        "resamples": resamples,
        "heldout": heldout,
        "sizes": SIZES,
    }
    name = digest_of(call)
    if there := measured_already(output, name, say):
        write_report(output, markdown(there))
        return there
    output.mkdir(parents=True, exist_ok=True)
    every = {}
    for domain in domains:
        own = read_conversations(domain.train, target, heldout)
        held = own.summed(own.heldout, target.vocab_size)
        check_parts(domain, int(own.counts.sum() - held.sum()), int(held.sum()), heldout)
        every[domain.name] = own
        say(f"{target.slug}: {domain.name} counted, {own.heldout.size:,}")
    if len(every) > 1:
        every[ALL] = Conversations.together(list(every.values()))
    kept = kept_rows(output / FIGURES, call, ["domain", "size", "drawn"])
    if kept.rows:
        say(f"{target.slug}: going on, {len(kept.rows)} numbers are done already")
    done = {(row["domain"], row["size"]) for row in kept.rows}
    required = target.required.ids
    for one, conversations in every.items():
        number = int((~conversations.heldout).sum())
        held = conversations.summed(conversations.heldout, target.vocab_size)
        for size in sizes_up_to(number):
            if (one, size) in done:
                continue
            times = 1 if size == number else resamples  # all of them can be drawn in one way
            found = [
                drawn(conversations, size, resample, held, target.latency, required)
                for resample in range(times)
            ]
            kept.add({"domain": one, "size": size, "drawn": found})
            say(f"{target.slug}: {one}, {size:,} conversations")
    result: dict[str, Any] = {
        "call": name,
        "command": command,
        "data": str(data),
        "facts": target.facts,
        "resamples": resamples,
        "heldout": heldout,
        "versions": versions(),
        "domains": {one: summary([r for r in kept.rows if r["domain"] == one]) for one in every},
    }
    draw_stability(result, output / "stability.png")
    write_report(output, markdown(result))
    write_figures(output, result)
    kept.remove()
    return result


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--resamples", type=int, default=RESAMPLES, help="of each number")
    args = parsed(parser, argv, output="examples/evidence/stability")
    if args.resamples < 1:
        parser.error(f"--resamples must be at least 1, got {args.resamples}")
    command = command_line(SCRIPT, argv)
    domains = domains_in(args.data, args.domains)
    for target, output in targets_of(args, SCRIPT):
        measure(
            target,
            domains,
            args.data,
            output,
            resamples=args.resamples,
            heldout=args.heldout,
            command=command,
        )
        print((output / REPORT).read_text("utf-8"))


if __name__ == "__main__":
    main()
