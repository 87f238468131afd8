"""Does the vocabulary's size that an objective promises most of give the most tokens a second?

    python examples/bench_objective.py --target smollm2 --data domains --draft sql=drafts/sql

One trained draft of the domain NAME (`--draft NAME=DRAFT`) is given heads of ten sizes k, from few
rows to all. All ids stand in one order: those it was trained with by their counts, required ones
first, then the others by theirs; smaller heads are cut from it (`retrim`), larger ones take rows
of the target that it was not trained with (`extend`). Without any prompt of DATA/NAME/test.jsonl,
sizes are chosen by

- `utility`, the paper's, with four weights alpha (operations of a draft's step, as in the paper);
- `throughput`, with the draft's acceptance and times as measured on `--search-data`, with this n;
- `throughput_by_counts`: the same, but what the draft's vocabulary covers is what the counts say,
  not what the target said in that measurement;
- `tpe`: Optuna's TPE sampler over k, from the number of required ids to all of V (8 trials, three
  of them at random), each trial a measurement of the speed-up on a few prompts of `--search-data`.

`--search-data` is chat data, by default DATA/NAME/train.jsonl; only its search part is asked, and
it is counted unless `--counts` gives what `vtrim count` wrote. Best is the file of the target's
own answers that the draft was trained on. Then all ten sizes and all chosen ones answer the test
prompts in turns, greedy, with the same n, each once for the clock and once for its parts; the
report says by how much each choice falls short of the best size, and how the predictions of the
ten sizes rank beside what was measured.

With 12 prompts it took 20 and 38 minutes with SmolLM2 on two machines of 2 cores. After
`--minutes` it ends, wherever it is, and the same command goes on. OUTPUT/NAME holds report.md,
figures.json and report.png of the domain; OUTPUT has the same of all domains together, and says
which objective chooses best and by how much. WORK/NAME holds what was measured, prompt by prompt.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from bench_arguments import add_dtype, add_places, at_least_one, data_folder
from bench_parts import (
    by_need,
    check_drafts,
    check_rows,
    counts_of,
    model_named,
    named_drafts,
    required_ids,
    rows_of,
)
from bench_prompts import search_rows, spread_prompts
from bench_results import (
    FIGURES,
    command_line,
    digest_of,
    ended_after,
    file_hash,
    machines_of,
    measured_before,
    write_results,
)
from bench_trained_draft import measured
from objective_choices import BOTH, Heads, choose, sizes_around, with_chosen
from objective_figures import figures_of, summary_of
from objective_report import draw, markdown
from objective_summary import draw as draw_summary
from objective_summary import markdown as summary

from vtrim_hf import TokenCounts
from vtrim_hf.search_space import running_coverage
from vtrim_hf.vocabulary import rank_ids

HELDOUT = 0.2
FORMAT = 3  # raise it when a domain would be measured or told otherwise
NUMBERS = (
    "prompts",
    "search_prompts",
    "trial_prompts",
    "trials",
    "max_new_tokens",
    "draft_length",
)


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", default="smollm2", help="Hub id, folder or smollm2")
    parser.add_argument("--data", type=data_folder, required=True, help="folder or Hub id")
    parser.add_argument("--draft", required=True, metavar="NAME=DRAFT", help="NAME is a domain")
    parser.add_argument("--search-data", type=Path, help="default: DATA/NAME/train.jsonl")
    parser.add_argument("--counts", type=Path, help="what `vtrim count` wrote of it")
    parser.add_argument("--prompts", type=int, default=12, help="of test.jsonl")
    parser.add_argument("--search-prompts", type=int, default=12, help="for the acceptance")
    parser.add_argument("--trial-prompts", type=int, default=6, help="of these, in a trial of TPE")
    parser.add_argument("--trials", type=int, default=8, help="of TPE")
    parser.add_argument(
        "--longest-prompt", type=at_least_one, help="characters; longer ones are left out"
    )
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--draft-length", type=int, default=4, help="n, of every size")
    add_dtype(parser, "of target and draft")
    add_places(parser, "objective")
    args = parser.parse_args(argv)
    for name in NUMBERS:
        if getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    if args.trial_prompts > args.search_prompts:
        parser.error("--trial-prompts must not be more than --search-prompts")
    return args


def measure(
    domain: str,
    heads: Heads,
    counts: TokenCounts,
    asked: Sequence[Sequence[int]],
    tested: Sequence[Sequence[int]],
    args: argparse.Namespace,
) -> dict[str, Any]:
    """Choose sizes and measure them, or go on; return the figures of the domain."""
    target, trained, work = heads.target, heads.trained, args.work / domain
    searched, required = counts.array("search"), required_ids(target)
    counted = int(rank_ids(searched, required).size)
    sweep = np.array(sizes_around(trained, len(required), counted, target.vocab_size))
    curve = (sweep, running_coverage(searched, heads.order, sweep))
    how: dict[str, Any] = {
        "dtype": args.dtype,
        "max_new_tokens": args.max_new_tokens,
        "draft_length": args.draft_length,
        "threshold": 0.0,  # nothing ends a draft early, so that n is the same for all
    }
    choices, values, before = choose(heads, counts, curve, asked, work, args, how)
    every, shown_as = with_chosen(sweep.tolist(), [one["k"] for one in choices.values()])
    for one in choices.values():
        one["measured_at"] = shown_as[one["k"]]
    names = {size: "draft" if size == trained else f"k={size}" for size in every}
    ways = {name: heads.of(size) for size, name in names.items()}
    report = measured(work / "sizes", target, ways, tested, plain_dtypes=BOTH, **how)
    check_rows(report, {name: size for size, name in names.items()})
    own = heads.draft.model("auto").vocabulary.ids.numpy()
    by_counts = by_need(searched, required)
    return {
        "trained_k": trained,
        "required": len(required),
        "machines": {
            part: machines_of([one.machine for one in reports])
            for part, reports in {**before, "the sizes": [report]}.items()
        },
        "counted_or_required": counted,
        "trained_covers_of_counts": counts.coverage(own.tolist(), "search"),
        "trained_ids_first_by_counts": int(np.isin(own, by_counts[:trained]).sum()),
        **figures_of(report, before["the search part"][0], names, curve, choices, values),
    }


def run(args: argparse.Namespace, command: str) -> None:
    """Measure the domain unless it is measured, and tell of all."""
    target, drafts = model_named(args.target), named_drafts([args.draft])
    if len(drafts) != 1:
        raise SystemExit(f"--draft must be one NAME=DRAFT, got {', '.join(drafts)}")
    ((domain, draft),) = drafts.items()
    asked_of = args.search_data or args.data / domain / "train.jsonl"
    tested_on = args.data / domain / "test.jsonl"
    for path in (asked_of, tested_on):
        if not path.is_file():
            raise SystemExit(f"there is no {path}")
    if file_hash(asked_of) == file_hash(tested_on):
        raise SystemExit(
            f"sizes must be chosen by other data than they are judged by, and {asked_of} has the "
            f"content of {tested_on}: name other --search-data"
        )
    settings = {
        "target_identity": target.identity,
        "vocab_size": target.vocab_size,
        **{name: getattr(args, name) for name in (*NUMBERS, "longest_prompt", "dtype")},
    }
    domains = {
        place.parent.name: measured_before(place.parent, settings, FORMAT)
        for place in sorted(args.output.glob(f"*/{FIGURES}"))
    }
    trained = rows_of(draft, target)
    counts = counts_of(target, args.counts, asked_of, heldout=HELDOUT)
    rows = list(search_rows(asked_of, HELDOUT, target.vocab_size))
    longest, tokenizer = args.longest_prompt, target.tokenizer
    searched = spread_prompts(rows, tokenizer, args.search_prompts, longest)
    # All that can be refused is refused first; nothing else reads the test data.
    judged = spread_prompts(tested_on, tokenizer, args.prompts, longest)
    asked, tested = searched.prompts, judged.prompts
    if shared := sum(prompt in asked for prompt in tested):
        raise SystemExit(
            f"sizes must be chosen by other prompts than they are judged by, and {shared} of the "
            f"{len(tested)} test prompts are also asked from {asked_of}: take them out of it, or "
            "name other --search-data"
        )
    call = {
        "format": FORMAT,
        **settings,
        "draft": draft.identity,
        "counts": counts.fingerprint,
        "asked": asked,
        "tested": tested,
    }
    if domains.get(domain, {}).get("call") == digest_of(call):
        print(f"{domain} is of this call already; delete {args.output / domain} to measure anew")
    else:
        check_drafts(target, [draft], args.dtype)
        own = draft.model("auto").vocabulary.ids.numpy()
        order = by_need(counts.array("search"), required_ids(target), own)
        heads = Heads(draft, target, trained, order)
        domains[domain] = {
            "format": FORMAT,
            "target": args.target,
            "settings": settings,
            "call": digest_of(call),
            "command": command,
            "domain": domain,
            "draft": draft.name,
            "draft_identity": draft.identity,
            "search_data": str(asked_of),
            "search_data_sha256": file_hash(asked_of),
            "test_data": str(tested_on),
            "test_data_sha256": file_hash(tested_on),
            "left_out": {"search": searched.left_out, "test": judged.left_out},
            "unreadable": {"search": searched.unreadable, "test": judged.unreadable},
            "counts": None if args.counts is None else str(args.counts),
            "counts_fingerprint": counts.fingerprint,
            **measure(domain, heads, counts, asked, tested, args),
        }
        one = domains[domain]
        write_results(args.output / domain, one, markdown(one), draw(one))
    told = summary_of(dict(sorted(domains.items())))
    found = {"format": FORMAT, "target": args.target, "settings": settings, **told}
    text = summary(found)
    write_results(args.output, found, text, draw_summary(found))
    print(f"{markdown(domains[domain])}\n\n{text}")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    args = arguments(argv)
    with ended_after(args.minutes):
        run(args, command_line("bench_objective.py", argv))


if __name__ == "__main__":
    main()
