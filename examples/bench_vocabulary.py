"""Which vocabulary each domain gets, what it covers, and how other ways of choosing one compare.

    python examples/bench_vocabulary.py --data domains --target smollm2

`--data` is a folder of domains as `build_domains.py` makes it: DOMAIN/train.jsonl, test.jsonl
where there is one, and ood/*.jsonl. For every domain, on the tokens that the assistant says:

- the exact k* and that of the paper's search (TPE) for four weights and four least coverages, with
  coverage on the search part, on held-out conversations of the same file, and on test.jsonl;
- at the k* of the paper's setting (weight 0.5, no least coverage): what the vocabularies that
  others would choose cover on the same held-out conversations;
- the coverage of each domain's vocabulary on every other domain and on the ood sets.

`--target` may be given several times: smollm2, a folder or a Hub id; of a folder with a tokenizer
only, `--layer-of` names the model whose config says how large a draft's layer is. `llama3` is the
tokenizer of the paper's target, read out of the package llama-models (pip install --no-deps
llama-models==0.3.0; Meta's licence), with the layer sizes of Llama-3.1-8B.

One target and the nine domains of `build_domains.py` take about 2 minutes of one core. The same
command goes on where it was interrupted. OUTPUT/<target>/ then holds report.md, figures.json and
heat_map.png.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from paper_figures import PAPER_ALPHA, PAPER_FLOOR
from vocabulary_plots import draw_heat_map
from vocabulary_report import markdown
from vocabulary_rivals import TextCounts, rival_vocabularies, text_counts
from vocabulary_runs import (
    FIGURES,
    GENERAL,
    REPORT,
    Domain,
    command_line,
    domains_in,
    identity_of,
    measured_already,
    name_of,
    parsed,
    targets_of,
    versions,
    write_figures,
    write_report,
)
from vocabulary_targets import Target

from vtrim_hf import TokenCounts, search_vocabulary
from vtrim_hf.kept_rows import KeptRows
from vtrim_hf.vocabulary import rank_ids

ALPHAS = (0.3, 0.5, 0.7, 0.9)
FLOORS = (0.0, 0.95, 0.97, 0.99)
OOD = "ood"


def assistant_counts(path: Path, name: str, target: Target, heldout: float) -> TokenCounts:
    """Count what the assistant says; kept counts are found again."""
    return TokenCounts.from_dataset(
        str(path),
        target.tokenizer,
        vocab_size=target.vocab_size,
        heldout=heldout,
        domain=name,
        progress=False,
    )


def covered(counts: TokenCounts | None, ids: Any, part: str) -> dict[str, Any] | None:
    """Return which share of a part a vocabulary covers, with its 95 % interval."""
    if counts is None or not counts.total(part):
        return None
    low, high = counts.coverage_interval(ids, part)
    return {"coverage": counts.coverage(ids, part), "low": low, "high": high}


def figures_of(
    found: Any, counts: TokenCounts, test: TokenCounts | None, **more: Any
) -> dict[str, Any]:
    """Return what a table shows of a vocabulary that a search chose."""
    return {
        "k": found.k,
        "reduction": found.reduction,
        "utility": found.utility,
        "gap_to_exact": found.gap_to_exact,
        "search": covered(counts, found.vocabulary, "search"),
        "heldout": covered(counts, found.vocabulary, "heldout"),
        "test": covered(test, found.vocabulary, "all"),
        **more,
    }


def grid(
    counts: TokenCounts, test: TokenCounts | None, target: Target, trials: int
) -> list[dict[str, Any]]:
    """Search with every weight and least coverage, exactly and as the paper does."""
    cells = []
    for alpha in ALPHAS:
        for floor in FLOORS:
            how = {"alpha": alpha, "min_coverage": floor, "required": target.required}
            exact = search_vocabulary(counts, target.latency, **how)
            tpe = search_vocabulary(
                counts, target.latency, **how, method="tpe", trials=trials, progress=False
            )
            cells.append(
                {
                    "alpha": alpha,
                    "min_coverage": floor,
                    "exact": figures_of(exact, counts, test),
                    "tpe": figures_of(tpe, counts, test, distinct=tpe.study["distinct_sizes"]),
                }
            )
    return cells


def best(counts: TokenCounts, target: Target) -> Any:
    """Search with the paper's weight and no least coverage, required ids being part of k."""
    return search_vocabulary(
        counts,
        target.latency,
        alpha=PAPER_ALPHA,
        min_coverage=PAPER_FLOOR,
        required=target.required,
    )


def ways(
    counts: TokenCounts,
    test: TokenCounts | None,
    texts: TextCounts,
    raw: np.ndarray,
    general: np.ndarray | None,
    target: Target,
) -> dict[str, Any]:
    """Choose vocabularies as others do, of the same conversations, and judge all alike.

    Args:
        counts: what the assistant says in this domain.
        test: the same of its test data.
        texts: what others count of the same conversations.
        raw: int64 [V], raw text of all domains.
        general: int64 [V], what the assistant says in the domain `general`.
        target: whose ids they are.
    """
    found = best(counts, target)
    chosen = {"vtrim": np.asarray(found.vocabulary.ids)}
    chosen |= rival_vocabularies(counts.array("search"), found.k, texts, raw, general, target)
    required = set(target.required)
    return {
        name: {
            "k": int(ids.size),
            "reduction": target.latency.reduction(int(ids.size)),
            "required_missing": len(required.difference(ids.tolist())),
            "heldout": covered(counts, ids, "heldout"),
            "test": covered(test, ids, "all"),
        }
        for name, ids in chosen.items()
    }


def sayable(counted: np.ndarray, target: Target) -> int:
    """Return how many ids were counted or are required: no vocabulary is larger."""
    return int(rank_ids(counted, target.required.ids).size)


def paper_run(
    counts: TokenCounts, test: TokenCounts | None, target: Target, trials: int
) -> dict[str, Any]:
    """Search as the paper's published run does: no required ids, 50 to 50,000 tokens."""
    exact = search_vocabulary(
        counts, target.latency, alpha=PAPER_ALPHA, k_max=50_000, multiple_of=1
    )
    tpe = search_vocabulary(counts, target.latency, preset="paper", trials=trials, progress=False)
    return {
        "exact": figures_of(exact, counts, test),
        "tpe": figures_of(tpe, counts, test, distinct=tpe.study["distinct_sizes"]),
    }


def crossed(
    counts: Mapping[str, TokenCounts], ood: Mapping[str, TokenCounts], target: Target
) -> dict[str, Any]:
    """Return what each domain's vocabulary covers of every domain and ood set."""
    rows: dict[str, Any] = {}
    for name, own in counts.items():
        found = best(own, target)
        on = {other: covered(data, found.vocabulary, "heldout") for other, data in counts.items()}
        far = {other: covered(data, found.vocabulary, "all") for other, data in ood.items()}
        rows[name] = {"k": found.k, "domains": on, "ood": far}
        if ood:
            tokens = {other: data.total("all") for other, data in ood.items()}
            share = sum(far[other]["coverage"] * tokens[other] for other in ood)
            rows[name]["ood_weighted"] = share / sum(tokens.values())
    return rows


def measure(
    target: Target,
    domains: Sequence[Domain],
    data: Path,
    output: Path,
    *,
    trials: int,
    heldout: float,
    command: str,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Measure one target, or go on; what the same call has finished is only read."""
    far = {path.stem: path for path in sorted((data / OOD).glob("*.jsonl"))}
    call = {
        **target.facts,
        "domains": {domain.name: domain.identity for domain in domains},
        "ood": {name: identity_of(path) for name, path in far.items()},
        "trials": trials,
        "heldout": heldout,
        "alphas": ALPHAS,
        "floors": FLOORS,
    }
    name = name_of(call)
    if there := measured_already(output, name, say):
        write_report(output, markdown(there))
        return there
    output.mkdir(parents=True, exist_ok=True)
    counts: dict[str, TokenCounts] = {}
    tests: dict[str, TokenCounts | None] = {}
    texts: dict[str, TextCounts] = {}
    for domain in domains:
        start = time.perf_counter()
        counts[domain.name] = assistant_counts(domain.train, domain.name, target, heldout)
        tests[domain.name] = (
            None
            if domain.test is None
            else assistant_counts(domain.test, domain.name, target, 0.0)
        )
        texts[domain.name] = text_counts(domain.train, target, heldout)
        say(f"{target.slug}: {domain.name} counted in {time.perf_counter() - start:.0f} s")
    raw = np.sum([one.raw for one in texts.values()], axis=0)
    general = counts[GENERAL].array("search") if GENERAL in counts else None
    kept = KeptRows.beside(output / FIGURES, call)
    done = {row["domain"] for row in kept.rows}
    if done:
        say(f"{target.slug}: going on, {len(done)} domains are searched already")
    for domain in domains:
        if domain.name in done:
            continue
        start = time.perf_counter()
        own, test = counts[domain.name], tests[domain.name]
        kept.add(
            {
                "domain": domain.name,
                "tokens": {part: own.total(part) for part in ("search", "heldout")},
                "conversations": {p: own.conversations(p) for p in ("search", "heldout")},
                "test_tokens": None if test is None else test.total("all"),
                "grid": grid(own, test, target, trials),
                "paper": paper_run(own, test, target, trials),
                "ways": ways(own, test, texts[domain.name], raw, general, target),
            }
        )
        say(f"{target.slug}: {domain.name} searched in {time.perf_counter() - start:.0f} s")
    by_name = {row["domain"]: row for row in kept.rows}
    sets = {}
    for set_name, path in far.items():
        sets[set_name] = assistant_counts(path, set_name, target, 0.0)
    found = {
        "call": name,
        "command": command,
        "data": str(data),
        "facts": target.facts,
        "trials": trials,
        "heldout": heldout,
        "versions": versions(),
        "domains": {
            domain.name: by_name[domain.name]
            | {"sayable": sayable(counts[domain.name].array("search"), target)}
            for domain in domains
        },
        "crossed": crossed(counts, sets, target),
    }
    draw_heat_map(found, output / "heat_map.png")
    write_report(output, markdown(found))
    write_figures(output, found)
    kept.remove()
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trials", type=int, default=100, help="of TPE, each time")
    args = parsed(parser, argv, output="examples/evidence/vocabulary")
    if args.trials < 1:
        parser.error(f"--trials must be at least 1, got {args.trials}")
    command = command_line("bench_vocabulary.py", argv)
    domains = domains_in(args.data, args.domains)
    for target, output in targets_of(args):
        measure(
            target,
            domains,
            args.data,
            output,
            trials=args.trials,
            heldout=args.heldout,
            command=command,
        )
        print((output / REPORT).read_text("utf-8"))


if __name__ == "__main__":
    main()
