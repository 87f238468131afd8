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
`build_domains.py` take about 5 minutes of one core, counting included; each conversation is
tokenised once. The same command goes on where it was interrupted. OUTPUT/<target>/ then holds
report.md, figures.json and stability.png.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from bench_vocabulary import (
    PAPER_ALPHA,
    PAPER_FLOOR,
    PAPER_WIDTH,
    Domain,
    Target,
    batches,
    domains_in,
    identity_of,
    parsed,
    table,
    tokens_a_row,
    versions,
)

from vtrim_hf import LatencyModel, TokenCounts
from vtrim_hf.batch_counting import BatchCounter, CountRules
from vtrim_hf.chat_data import open_chat_data
from vtrim_hf.embedded_models import cache_folder
from vtrim_hf.kept_rows import KeptRows
from vtrim_hf.search_space import build_space
from vtrim_hf.vocabulary import write_atomically

ALL = "all domains"
SIZES = (100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000)
RESAMPLES = 20
K_WITHIN, COVERAGE_WITHIN = 0.05, 0.005  # a share of k*, and a difference
PAPER_BAND, PAPER_FROM = (13_000, 13_300), 10_000
ROWS_AT_ONCE = 512


@dataclass(frozen=True, eq=False)
class Conversations:
    """What the assistant says in each conversation, in sparse form.

    Attributes:
        starts: int64 [n + 1]: conversation i has the entries from starts[i] to starts[i + 1].
        ids: int32 [entries], token ids, each once a conversation.
        counts: int32 [entries], at least 1.
        heldout: bool [n].
    """

    starts: np.ndarray
    ids: np.ndarray
    counts: np.ndarray
    heldout: np.ndarray

    @classmethod
    def together(cls, parts: Sequence[Conversations]) -> Conversations:
        """Put conversations one behind the other."""
        lengths = np.concatenate([np.diff(part.starts) for part in parts])
        return cls(
            np.concatenate([[0], np.cumsum(lengths)]),
            np.concatenate([part.ids for part in parts]),
            np.concatenate([part.counts for part in parts]),
            np.concatenate([part.heldout for part in parts]),
        )

    def summed(self, chosen: np.ndarray, vocab_size: int) -> np.ndarray:
        """Sum the counts of the chosen conversations (bool [n]): int64 [V]."""
        entries = np.repeat(chosen, np.diff(self.starts))
        sums = np.bincount(self.ids[entries], self.counts[entries], minlength=vocab_size)
        return sums.astype(np.int64)


def read_conversations(path: Path, target: Target, heldout: float) -> Conversations:
    """Count each conversation of a file by itself; kept counts are found again."""
    facts = [
        identity_of(path),
        heldout,
        target.facts["tokenizer_hash"],
        target.facts["template_hash"],
        target.vocab_size,
    ]
    digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]
    kept = cache_folder() / "counts" / f"by-conversation-{digest}.npz"
    if kept.is_file():
        with np.load(kept) as arrays:
            return Conversations(**arrays)
    found = counted_one_by_one(path, target, heldout)
    stream = io.BytesIO()
    np.savez(stream, **vars(found))
    kept.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(kept, stream.getvalue())
    return found


def counted_one_by_one(path: Path, target: Target, heldout: float) -> Conversations:
    """Count each conversation of a file by itself, exactly as the package counts them together."""
    rules = CountRules(vocab_size=target.vocab_size, heldout=heldout)
    counter = BatchCounter(target.tokenizer, rules)
    piece_ids = counter.renderer.tokens.piece_ids
    lengths: list[int] = []
    held: list[bool] = []
    ids: list[np.ndarray] = []
    counts: list[np.ndarray] = []
    with counter.renderer.tokens.untruncated():
        for rows in batches(iter(open_chat_data(str(path))), ROWS_AT_ONCE):
            prepared = [counter.prepare([row]) for row in rows]
            prepared = [one for one in prepared if one.batch.conversations.any()]
            pieces = [piece for one in prepared for piece in one.pieces]
            encoded = iter(counter.renderer.tokens.encode_pieces(pieces))
            for one in prepared:
                said = list(one.ids)
                for piece in one.pieces:
                    said += piece_ids(piece, next(encoded))
                unique, number = np.unique(np.asarray(said, dtype=np.int32), return_counts=True)
                ids.append(unique)
                counts.append(number.astype(np.int32))
                lengths.append(unique.size)
                held.append(bool(one.batch.conversations[rules.blocks :].any()))
    return Conversations(
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        np.concatenate(ids),
        np.concatenate(counts),
        np.asarray(held, dtype=bool),
    )


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


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return the median and the quartiles."""
    low, middle, high = np.percentile(values, [25, 50, 75])
    return {"median": float(middle), "q25": float(low), "q75": float(high)}


def settled(points: Sequence[Mapping[str, Any]], key: str, within: float) -> int | None:
    """Return the number of conversations from which on a figure is settled, if it is.

    Args:
        points: by ascending `size`, with the figure as `spread` gives it; the last is that of all
            conversations.
        key: the figure.
        within: how far its quartiles may lie from that of all conversations.
    """
    last = points[-1]
    found = None
    for point in reversed(points[:-1]):
        quartiles = (point[key]["q25"], point[key]["q75"])
        if max(abs(value - last[key]["median"]) for value in quartiles) > within:
            break
        found = point["size"]
    return found if found is not None and found <= last["size"] / 2 else None


def both_settled(points: Sequence[Mapping[str, Any]]) -> dict[str, int | None]:
    """Return from which number of conversations on k* and the coverage are settled."""
    return {
        "k": settled(points, "k", K_WITHIN * points[-1]["k"]["median"]),
        "coverage": settled(points, "coverage", COVERAGE_WITHIN),
    }


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
        f"Data: {found['data']}; " + ", ".join(f"{n} {v}" for n, v in found["versions"].items()),
        "",
        f"    {found['command']}",
        "",
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


def draw(found: Mapping[str, Any], path: Path) -> None:
    """Draw k* and coverage against the number of conversations."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (above, below) = pyplot.subplots(
        2, 1, sharex=True, figsize=(7.5, 7), layout="constrained"
    )
    for name, one in found["domains"].items():
        sizes = [point["size"] for point in one["points"]]
        for axes, key in ((above, "k"), (below, "coverage")):
            middle, low, high = (
                [point[key][part] for point in one["points"]] for part in ("median", "q25", "q75")
            )
            style = "--" if name == ALL else "-"
            (line,) = axes.plot(sizes, middle, style, marker="o", markersize=3, label=name)
            axes.fill_between(sizes, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
            if one["settled"][key] is not None:
                at = sizes.index(one["settled"][key])
                axes.plot(
                    sizes[at],
                    middle[at],
                    "o",
                    markersize=9,
                    fillstyle="none",
                    color=line.get_color(),
                )
    if found["facts"]["vocab_size"] == PAPER_WIDTH:
        above.axhspan(*PAPER_BAND, color="grey", alpha=0.5, label="the paper, from 10,000 on")
    above.set_ylabel("k*")
    above.set_title(f"{found['facts']['target']}; circles: settled")
    above.legend(fontsize=7, ncols=2)
    below.set_ylabel("held-out coverage")
    below.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    below.set_xlabel("conversations that were counted")
    below.set_xscale("log")
    for axes in (above, below):
        axes.grid(alpha=0.3)
    stream = io.BytesIO()
    figure.savefig(stream, dpi=130, format="png", metadata={"Software": None})
    pyplot.close(figure)
    write_atomically(path, stream.getvalue())


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
    """Measure one target, or go on; what the same call has finished is only read."""
    call = {
        **target.facts,
        "domains": {domain.name: domain.identity[0] for domain in domains},
        "resamples": resamples,
        "heldout": heldout,
        "sizes": SIZES,
    }
    name = hashlib.sha256(json.dumps(call, sort_keys=True).encode()).hexdigest()
    figures = output / "figures.json"
    if figures.is_file():
        there: dict[str, Any] = json.loads(figures.read_text("utf-8"))
        if there.get("call") == name:
            say(f"{figures} is of this call already; delete it to measure anew")
            write_atomically(output / "report.md", markdown(there).encode())
            return there
    output.mkdir(parents=True, exist_ok=True)
    every = {}
    for domain in domains:
        every[domain.name] = read_conversations(domain.train, target, heldout)
        say(f"{target.slug}: {domain.name} counted, {every[domain.name].heldout.size:,}")
    if len(every) > 1:
        every[ALL] = Conversations.together(list(every.values()))
    kept = KeptRows.beside(figures, call)
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
    draw(result, output / "stability.png")
    write_atomically(output / "report.md", markdown(result).encode())
    write_atomically(figures, (json.dumps(result, indent=1) + "\n").encode())
    kept.remove()
    return result


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a domain's figures by number of conversations, and where it is settled."""
    points = [
        {
            "size": row["size"],
            **{key: spread([one[key] for one in row["drawn"]]) for key in row["drawn"][0]},
            "k_drawn": [one["k"] for one in row["drawn"]],
        }
        for row in sorted(rows, key=lambda row: row["size"])
    ]
    return {"points": points, "settled": both_settled(points)}


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--resamples", type=int, default=RESAMPLES, help="of each number")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("examples/evidence/stability"),
        help="a folder a target",
    )
    args = parsed(parser, argv)
    if args.resamples < 1:
        parser.error(f"--resamples must be at least 1, got {args.resamples}")
    words = sys.argv[1:] if argv is None else argv
    command = shlex.join(["python", "examples/bench_stability.py", *words])
    domains = domains_in(args.data, args.domains)
    for name in args.target:
        target = Target(name, args.layer_of)
        output = args.output / target.slug
        measure(
            target,
            domains,
            args.data,
            output,
            resamples=args.resamples,
            heldout=args.heldout,
            command=command,
        )
        print((output / "report.md").read_text("utf-8"))


if __name__ == "__main__":
    main()
