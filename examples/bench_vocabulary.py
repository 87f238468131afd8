"""Which vocabulary each domain gets, what it covers, and how other ways of choosing one compare.

    python examples/bench_vocabulary.py --data domains --target smollm2

`--data` is a folder of domains as `build_domains.py` makes it: DOMAIN/train.jsonl, test.jsonl
where there is one, and ood/*.jsonl. For every domain, on the tokens that the assistant says:

- the exact k* and that of the paper's search (TPE) for four weights and four least coverages, with
  coverage on the search part, on held-out conversations of the same file, and on test.jsonl;
- at the k* of the paper's setting (weight 0.5, no least coverage): what the vocabularies that
  others would choose cover on the same held-out conversations;
- the coverage of each domain's vocabulary on every other domain and on the ood sets.

Files of prompts alone, which are enough for bench_decoding.py, are left out, and named.

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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from bench_files import kept_rows
from bench_results import FIGURES, REPORT, command_line, digest_of, file_hash, write_figures
from vocabulary_figures import ALPHAS, FLOORS, crossed, grid, paper_run, sayable, ways
from vocabulary_plots import draw_heat_map
from vocabulary_report import markdown
from vocabulary_rivals import TextCounts, text_counts
from vocabulary_runs import (
    GENERAL,
    OOD,
    Domain,
    check_parts,
    domains_in,
    has_answers,
    measured_already,
    parsed,
    targets_of,
    versions,
    write_report,
)
from vocabulary_targets import Target

from vtrim_hf import TokenCounts

SCRIPT = "bench_vocabulary.py"
FORMAT = 1  # raise it when a target would be measured or told otherwise


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


def all_said(path: Path, name: str, target: Target) -> TokenCounts | None:
    """Count a whole file; None if nobody answers in it, as where only prompts were needed."""
    if not has_answers(path):
        return None
    counts = assistant_counts(path, name, target, 0.0)
    return counts if counts.total("all") else None


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
    """Measure one target, or go on; what the same call has finished is only read.

    Raises:
        SystemExit: if a domain has no answers in one of its parts.
    """
    far = {path.stem: path for path in sorted((data / OOD).glob("*.jsonl"))}
    call = {
        "format": FORMAT,
        **target.facts,
        "domains": {domain.name: domain.identity for domain in domains},
        "ood": {name: file_hash(path) for name, path in far.items()},
        "trials": trials,
        "heldout": heldout,
        "alphas": ALPHAS,
        "floors": FLOORS,
    }
    name = digest_of(call)
    if there := measured_already(output, name, say):
        write_report(output, markdown(there))
        return there
    output.mkdir(parents=True, exist_ok=True)
    counts: dict[str, TokenCounts] = {}
    tests: dict[str, TokenCounts | None] = {}
    texts: dict[str, TextCounts] = {}
    for domain in domains:
        start = time.perf_counter()
        own = assistant_counts(domain.train, domain.name, target, heldout)
        check_parts(domain, own.total("search"), own.total("heldout"), heldout)
        counts[domain.name] = own
        tests[domain.name] = domain.test and all_said(domain.test, domain.name, target)
        texts[domain.name] = text_counts(domain.train, target, heldout)
        say(f"{target.slug}: {domain.name} counted in {time.perf_counter() - start:.0f} s")
    every = {name: all_said(path, name, target) for name, path in far.items()}
    sets = {name: one for name, one in every.items() if one is not None}
    unanswered = [str(far[name]) for name, one in every.items() if one is None]
    unanswered += [str(one.test) for one in domains if one.test and tests[one.name] is None]
    if unanswered:
        say(f"{target.slug}: nobody answers in {', '.join(unanswered)}: left out")
    raw = np.sum([one.raw for one in texts.values()], axis=0)
    general = counts[GENERAL].array("search") if GENERAL in counts else None
    kept = kept_rows(output / FIGURES, call, ["domain", "tokens", "grid"])
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
        "unanswered": unanswered,
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
    command = command_line(SCRIPT, argv)
    domains = domains_in(args.data, args.domains)
    for target, output in targets_of(args, SCRIPT):
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
