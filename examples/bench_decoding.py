"""What trained drafts gain in their domain and outside of it, with heads of several sizes.

    python examples/bench_decoding.py --target smollm2 --data domains --draft drafts

`--draft` is NAME=DRAFT, again and again, or a folder of drafts by the name of their domain. Each
is measured on prompts of DATA/NAME/test.jsonl, and the one named by `--ood-draft` (`general`) also
on every DATA/ood/*.jsonl; `build_domains.py` makes such a folder. The prompts are taken evenly
from all over a file. Every way of decoding answers each of them, greedy, in turns, and drafts the
same number of tokens a round:

- the target alone, in bfloat16 and in float32 (the faster one is the baseline);
- `trimmed`: the draft as it was trained;
- `optimised`: the same with the k* ids that the search chooses of the domain's counts where
  nothing forces a size (`--counts NAME=FILE`, as `vtrim count` writes; or DATA/NAME/train.jsonl
  is counted); left out where these are the ids that it was trained with;
- `full`: the same draft with rows for the whole vocabulary (`extend`);
- `fixed_16000`, `fixed_32000` (`--fixed`): the same draft with the tokens that are most frequent
  in general text (`--general-counts`, or DATA/general/train.jsonl is counted) and the required
  ones; rows that it was not trained with are the target's;
- `lookup`: Transformers' own prompt lookup, which needs no draft;
- `assistant`, where `--assistant` names a small model: Transformers' own assisted decoding;
- `trained_full`, where `--trained-full NAME=DRAFT` is given: a draft trained with the whole
  vocabulary; and `retrimmed`: the same, cut to the ids of the trimmed one.

Then target and trimmed draft answer once more in float32, where the text must be the target's own.

A set of 12 prompts took 8 minutes with SmolLM2 on 2 cores, 18 where prompts are long (functions),
so that ten sets take two runs: after `--minutes` it ends, wherever it is, and the same command
goes on. OUTPUT has report.md, figures.json and report.png of all sets that any run measured with
the same settings; WORK/<draft>_on_<set>/ holds what was measured, prompt by prompt.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from bench_arguments import add_dtype, add_places, at_least_one, data_folder
from bench_parts import Constant, check_drafts, check_rows, model_named, named_drafts
from bench_prompts import spread_prompts
from bench_results import (
    command_line,
    digest_of,
    ended_after,
    file_hash,
    machines_of,
    measured_before,
    write_results,
)
from bench_trained_draft import length_ratio, measured
from bench_ways import GENERAL, Lookup, Ways, chosen_for, fixed_ids
from decoding_cases import Case, cases_of
from decoding_report import beside_the_paper, draw, markdown

from vtrim_hf import DecodeReport
from vtrim_hf.measuring_step import Loadable
from vtrim_hf.named_models import NamedModel

FORMAT = 1  # raise it when a set would be measured or told otherwise
BOTH = ["float32", "bfloat16"]  # in which the target alone is tried


def a_forward(report: DecodeReport, name: str) -> float | None:
    """Return new tokens a forward of the target, each prompt's first one left out.

    Rounds in which nothing was drafted count as any others, unlike in an acceptance length.
    """
    entry, prompts = report.entries[name], len(report.rows)
    forwards = entry.target_forwards - prompts
    return (entry.tokens - prompts) / forwards if forwards > 0 else None


def figures_of(report: DecodeReport, identity: DecodeReport) -> dict[str, Any]:
    """Return the figures of one draft on one set as JSON values."""
    ways = {}
    best = "optimised" in report.entries
    for name, entry in report.entries.items():
        if entry.facts["kind"] == "plain":
            continue
        model = entry.facts["kind"] == "assistant"
        # Of a lookup only rounds that found something have a length: no draft's is like it.
        ways["trimmed" if name == "draft" else name] = {
            "head_rows": entry.facts["draft_vocab_size"] if model else None,
            "tokens_per_second": entry.tokens_per_second,
            "over_plain": vars(entry.speedup),
            "trimmed_over": vars(report.ratio("draft", name)),
            "seconds_of_trimmed_over": vars(report.ratio(name, "draft")),
            "optimised_over": vars(report.ratio("optimised", name)) if best else None,
            "seconds_of_optimised_over": vars(report.ratio(name, "optimised")) if best else None,
            "tokens_a_forward": a_forward(report, name),
            "acceptance_length": entry.acceptance_length if model else None,
            "acceptance_length_of_trimmed_over": (
                length_ratio(report, "draft", name) if model else None
            ),
            "acceptance_by_position": list(entry.acceptance_by_position) if model else None,
            "draft_ms": entry.draft_step_ms,
            "head_share": entry.share_by_part["draft_head"] if model else None,
            "identical": entry.identical_share,
            "out_of_vocabulary": entry.oov_share,
        }
    return {
        "prompts": len(report.rows),
        "new_tokens": sum(row["plain_tokens"] for row in report.rows),
        "prompt_tokens": float(np.median([row["prompt_tokens"] for row in report.rows])),
        "baseline": report.baseline,
        "plain_tokens_per_second": report.plain.tokens_per_second,
        "machines": machines_of([report.machine, identity.machine]),
        "ways": ways,
        "identical_in_float32": [
            sum(row["entries"]["draft"]["identical"] for row in identity.rows),
            len(identity.rows),
        ],
        "notes": list(report.notes),
    }


def measure(
    case: Case, target: NamedModel, drafts: Mapping[str, Loadable], prompts: Any, args: Any
) -> tuple[DecodeReport, DecodeReport]:
    """Measure one draft on one set, or go on; return what was found, and that in float32."""
    output = args.work / case.name
    same: dict[str, Any] = {
        "max_new_tokens": args.max_new_tokens,
        "draft_length": args.draft_length,
        "threshold": 0.0,  # nothing ends a draft early, so that n is the same for all
    }
    report = measured(output, target, drafts, prompts, dtype=args.dtype, plain_dtypes=BOTH, **same)
    alone, there = {"draft": drafts["draft"]}, output / "float32"
    identity = measured(there, target, alone, prompts, dtype="float32", plain_dtypes=[], **same)
    return report, identity


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", default="smollm2", help="Hub id, folder or smollm2")
    parser.add_argument("--data", type=data_folder, required=True, help="folder or Hub id")
    parser.add_argument(
        "--draft", action="append", required=True, help="NAME=DRAFT, or a folder of drafts"
    )
    parser.add_argument("--ood-draft", default=GENERAL, help="measured on DATA/ood/*.jsonl, too")
    parser.add_argument("--trained-full", action="append", default=[], metavar="NAME=DRAFT")
    parser.add_argument("--assistant", help="a small model to draft the ordinary way")
    parser.add_argument("--fixed", type=int, nargs="*", default=[16_000, 32_000], help="sizes")
    parser.add_argument("--general-counts", type=Path, help="what `vtrim count` wrote")
    parser.add_argument(
        "--counts", action="append", default=[], metavar="NAME=FILE", help="of a draft's domain"
    )
    parser.add_argument("--prompts", type=int, default=12, help="of each set")
    parser.add_argument(
        "--longest-prompt", type=at_least_one, help="characters; longer ones are left out"
    )
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--draft-length", type=int, default=4, help="n, of every way")
    add_dtype(parser, "of target and drafts")
    add_places(parser, "decoding")
    args = parser.parse_args(argv)
    if min(args.prompts, args.max_new_tokens, args.draft_length, *args.fixed) < 1:
        parser.error("--prompts, --max-new-tokens, --draft-length and --fixed must be at least 1")
    return args


def run(args: argparse.Namespace, command: str) -> None:
    """Measure every set that is not measured yet."""
    target = model_named(args.target)
    drafts, trained_full = named_drafts(args.draft), named_drafts(args.trained_full)
    if unknown := trained_full.keys() - drafts.keys():
        raise SystemExit(f"--trained-full {min(unknown)}: there is no --draft of this name")
    cases = cases_of([*drafts], args.ood_draft, args.data)
    others: dict[str, Loadable] = {"lookup": Lookup(args.draft_length)}
    if args.assistant:
        others["assistant"] = Constant(model_named(args.assistant, "--assistant"))
    names = ("prompts", "longest_prompt", "max_new_tokens", "draft_length", "dtype")
    settings = {
        "target_identity": target.identity,
        "vocab_size": target.vocab_size,
        **{name: getattr(args, name) for name in names},
    }
    sets: dict[str, Any] = measured_before(args.output, settings).get("sets", {})
    # All that can be refused is refused before anything is measured.
    asked = [
        spread_prompts(case.data, target.tokenizer, args.prompts, args.longest_prompt)
        for case in cases
    ]
    ways = Ways(
        target,
        drafts,
        trained_full,
        fixed_ids(target, args),
        chosen_for(target, [*drafts], args),
        others,
    )
    made = {name: ways.of(name) for name in drafts}

    def tell(left: Sequence[Case]) -> str:
        """Write what is known so far; in-domain sets come first."""
        found = {
            "target": args.target,
            "settings": settings,
            "sets": dict(sorted(sets.items(), key=lambda one: one[1]["out_of_distribution"])),
            "beside_the_paper": beside_the_paper(sets),
            "not_yet_measured": [case.name for case in left],
        }
        text = markdown(found)
        write_results(args.output, found, text, draw(found))
        return text

    calls = {
        case.name: digest_of(
            {
                "format": FORMAT,
                **settings,
                "ways": {way: one.identity for way, one in made[case.draft][0].items()},
                "asked": one_set.prompts,
            }
        )
        for case, one_set in zip(cases, asked, strict=True)
    }
    left = [case for case in cases if sets.get(case.name, {}).get("call") != calls[case.name]]
    models = [
        group[name]
        for group in (drafts, trained_full)
        for name in dict.fromkeys(case.draft for case in left)
        if name in group
    ]
    check_drafts(target, models, args.dtype)
    for case, one_set in zip(cases, asked, strict=True):
        if case not in left:
            print(f"{case.name} is of this call already; delete {args.output} to measure anew")
            continue
        print(f"{case.name}: {args.prompts} prompts of {case.data}")
        answering, expected = made[case.draft]
        report, identity = measure(case, target, answering, one_set.prompts, args)
        check_rows(report, expected)
        sets[case.name] = {
            "call": calls[case.name],
            "command": command,
            "draft": case.draft,
            "set": case.set,
            "out_of_distribution": case.ood,
            "data": str(case.data),
            "data_sha256": file_hash(case.data),
            "left_out": one_set.left_out,
            "unreadable": one_set.unreadable,
            "draft_identity": drafts[case.draft].identity,
            "optimised": ways.optimised(case.draft),
            **figures_of(report, identity),
        }
        drafts[case.draft].release()
        left.remove(case)
        tell(left)
    print(tell(left))


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    args = arguments(argv)
    with ended_after(args.minutes):
        run(args, command_line("bench_decoding.py", argv))


if __name__ == "__main__":
    main()
