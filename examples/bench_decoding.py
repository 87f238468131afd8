"""What trained drafts gain in their domain and outside of it, with heads of several sizes.

    python examples/bench_decoding.py --target smollm2 --data domains --draft drafts

`--draft` is NAME=DRAFT, again and again, or a folder of drafts by the name of their domain. Each
is measured on prompts of DATA/NAME/test.jsonl, and the one named by `--ood-draft` (`general`) also
on every DATA/ood/*.jsonl; `build_domains.py` makes such a folder. The prompts are taken evenly
from all over a file. Every way of decoding answers each of them, greedy, in turns, and drafts the
same number of tokens a round:

- the target alone, in bfloat16 and in float32 (the faster one is the baseline);
- `trimmed`: the draft as it was trained, with the vocabulary that the search chose;
- `full`: the same draft with rows for the whole vocabulary (`extend`);
- `fixed_16000`, `fixed_32000` (`--fixed`): the same draft with the tokens that are most frequent
  in general text (`--general-counts`, or DATA/general/train.jsonl is counted) and the required
  ones; rows that it was not trained with are the target's;
- `lookup`: Transformers' own prompt lookup, which needs no draft;
- `assistant`, where `--assistant` names a small model: Transformers' own assisted decoding;
- `trained_full`, where `--trained-full NAME=DRAFT` is given: a draft trained with the whole
  vocabulary; and `retrimmed`: the same, cut to the ids of the trimmed one.

Then target and trimmed draft answer once more in float32, where the text must be the target's own.

A set of 12 prompts takes about 9 minutes with SmolLM2 on 2 cores (estimated: 46 s a prompt), so
that ten sets take two runs: after `--minutes` no set is begun that may not end in time, and the
same command goes on. OUTPUT/<draft>_on_<set>/ holds what is measured; OUTPUT has report.md,
figures.json and report.png of all sets.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from bench_parts import (
    OtherRows,
    by_need,
    check_rows,
    command_line,
    counts_of,
    file_hash,
    named_drafts,
    required_ids,
    rows_of,
    spread_prompts,
    told,
    write_results,
)
from bench_trained_draft import length_ratio, measured
from decoding_report import beside_the_paper, draw, markdown

from vtrim_hf import DecodeReport
from vtrim_hf.measuring_step import Loadable
from vtrim_hf.named_models import NamedModel

GENERAL, OOD = "general", "ood"


class Lookup:
    """Transformers' own drafting without a model: what followed the last tokens before."""

    def __init__(self, draft_length: int) -> None:
        self._arguments = {"prompt_lookup_num_tokens": draft_length}

    @property
    def identity(self) -> str:
        """A text that is the same for the same way only."""
        return str(self._arguments)

    def model(self, dtype: str) -> Any:  # noqa: ARG002
        """Return the arguments of `generate`."""
        return self._arguments


class Assistant:
    """An ordinary assistant model that drafts the same number of tokens in every round."""

    def __init__(self, name: str) -> None:
        self._named = NamedModel(name)

    @property
    def identity(self) -> str:
        """A text that is the same for the same model only."""
        return f"constant:{self._named.identity}"

    def model(self, dtype: str) -> Any:
        """Return the model."""
        made = self._named.model(dtype)
        made.generation_config.num_assistant_tokens_schedule = "constant"
        return made


@dataclass(frozen=True)
class Case:
    """One draft on one set of prompts."""

    draft: str
    set: str
    data: Path
    ood: bool = False

    @property
    def name(self) -> str:
        """A name for a folder."""
        return f"{self.draft}_on_{self.set}"


def cases_of(drafts: Sequence[str], ood_draft: str, data: Path) -> list[Case]:
    """List what is measured.

    Raises:
        SystemExit: if a file is missing.
    """
    cases = [Case(name, name, data / name / "test.jsonl") for name in drafts]
    if ood_draft not in ("", GENERAL, *drafts):
        raise SystemExit(f"--ood-draft {ood_draft}: there is no --draft of this name")
    if ood_draft in drafts:
        files = sorted((data / OOD).glob("*.jsonl"))
        if not files:
            raise SystemExit(
                f"{data / OOD} holds no *.jsonl to measure {ood_draft!r} on: examples/"
                "build_domains.py DATA --only ood writes them; --ood-draft '' goes without"
            )
        cases += [Case(ood_draft, file.stem, file, ood=True) for file in files]
    for case in cases:
        if not case.data.is_file():
            raise SystemExit(f"there is no {case.data} to measure the draft {case.draft!r} on")
    return cases


def fixed_ids(target: NamedModel, args: argparse.Namespace) -> dict[int, np.ndarray]:
    """Return the fixed vocabularies by size; sizes that the target does not have are left out.

    Raises:
        SystemExit: if there is no general text to count, or a size without room.
    """
    sizes = sorted({size for size in args.fixed if size < target.vocab_size})
    if not sizes:
        return {}
    train = args.data / GENERAL / "train.jsonl"
    counts = counts_of(target, args.general_counts, train, heldout=0.0)
    required = required_ids(target)
    if sizes[0] < len(required):
        raise SystemExit(f"--fixed {sizes[0]} has no room for {len(required)} required ids")
    order = by_need(counts.array("all"), required)
    return {size: order[:size] for size in sizes}


@dataclass(frozen=True, eq=False)
class Ways:
    """How drafts are made ready to be measured.

    Attributes:
        target: the model that verifies.
        drafts: by name.
        trained_full: drafts that were trained with the whole vocabulary, by the same names.
        fixed: ids of the fixed vocabularies, by size.
        others: what needs no draft of ours.
    """

    target: NamedModel
    drafts: Mapping[str, NamedModel]
    trained_full: Mapping[str, NamedModel]
    fixed: Mapping[int, np.ndarray]
    others: Mapping[str, Loadable]

    def of(self, name: str) -> tuple[dict[str, Loadable], dict[str, int]]:
        """Return the ways to measure a draft, and how many rows those of our drafts have."""
        draft, target = self.drafts[name], self.target
        rows = rows_of(draft, target)
        cut = {f"fixed_{size}": ids for size, ids in self.fixed.items()}
        ways: dict[str, Loadable] = {"draft": draft}
        ways["full"] = OtherRows(draft, target, np.arange(target.vocab_size))
        ways |= {way: OtherRows(draft, target, ids) for way, ids in cut.items()}
        expected = {"draft": rows, "full": target.vocab_size}
        expected |= {way: ids.size for way, ids in cut.items()}
        if name in self.trained_full:
            wide = self.trained_full[name]
            if rows_of(wide, target) != target.vocab_size:
                raise SystemExit(f"--trained-full {wide} has not the whole vocabulary")
            own = draft.model("auto").vocabulary.ids.numpy()
            ways |= {"trained_full": wide, "retrimmed": OtherRows(wide, target, own)}
            expected |= {"trained_full": target.vocab_size, "retrimmed": rows}
        return {**ways, **self.others}, expected


def figures_of(report: DecodeReport, identity: DecodeReport) -> dict[str, Any]:
    """Return the figures of one draft on one set as JSON values."""
    ways = {}
    for name, entry in report.entries.items():
        if entry.facts["kind"] == "plain":
            continue
        model = entry.facts["kind"] == "assistant"
        ways["trimmed" if name == "draft" else name] = {
            "head_rows": entry.facts["draft_vocab_size"] if model else None,
            "tokens_per_second": entry.tokens_per_second,
            "over_plain": vars(entry.speedup),
            "trimmed_over": vars(report.ratio("draft", name)),
            "seconds_of_trimmed_over": vars(report.ratio(name, "draft")),
            "acceptance_length": entry.acceptance_length,
            "acceptance_length_of_trimmed_over": length_ratio(report, "draft", name),
            "acceptance_by_position": list(entry.acceptance_by_position),
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
    output = args.output / case.name
    same: dict[str, Any] = {
        "max_new_tokens": args.max_new_tokens,
        "draft_length": args.draft_length,
        "threshold": 0.0,  # nothing ends a draft early, so that n is the same for all
    }
    both = ["float32", "bfloat16"]
    report = measured(output, target, drafts, prompts, dtype=args.dtype, plain_dtypes=both, **same)
    alone, there = {"draft": drafts["draft"]}, output / "float32"
    identity = measured(there, target, alone, prompts, dtype="float32", plain_dtypes=[], **same)
    return report, identity


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", required=True, help="Hub id, folder or smollm2")
    parser.add_argument("--data", type=Path, required=True, help="folder of domains")
    parser.add_argument(
        "--draft", action="append", required=True, help="NAME=DRAFT, or a folder of drafts"
    )
    parser.add_argument("--ood-draft", default=GENERAL, help="measured on DATA/ood/*.jsonl, too")
    parser.add_argument("--trained-full", action="append", default=[], metavar="NAME=DRAFT")
    parser.add_argument("--assistant", help="a small model to draft the ordinary way")
    parser.add_argument("--fixed", type=int, nargs="*", default=[16_000, 32_000], help="sizes")
    parser.add_argument("--general-counts", type=Path, help="what `vtrim count` wrote")
    parser.add_argument("--prompts", type=int, default=12, help="of each set")
    parser.add_argument("--longest-prompt", type=int, help="characters; longer ones are left out")
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--draft-length", type=int, default=4, help="n, of every way")
    parser.add_argument("--dtype", default="bfloat16", help="of target and drafts")
    parser.add_argument("--minutes", type=float, default=80, help="no set is begun to end later")
    parser.add_argument("--output", type=Path, default=Path("bench_decoding"))
    args = parser.parse_args(argv)
    if min(args.prompts, args.max_new_tokens, args.draft_length, *args.fixed) < 1:
        parser.error("--prompts, --max-new-tokens, --draft-length and --fixed must be at least 1")
    return args


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    args = arguments(argv)
    target = NamedModel(args.target)
    drafts, trained_full = named_drafts(args.draft), named_drafts(args.trained_full)
    if unknown := trained_full.keys() - drafts.keys():
        raise SystemExit(f"--trained-full {min(unknown)}: there is no --draft of this name")
    cases = cases_of([*drafts], args.ood_draft, args.data)
    others: dict[str, Loadable] = {"lookup": Lookup(args.draft_length)}
    if args.assistant:
        others["assistant"] = Assistant(args.assistant)
    ways = Ways(target, drafts, trained_full, fixed_ids(target, args), others)

    found: dict[str, Any] = {
        **told(args),
        "target_identity": target.identity,
        "vocab_size": target.vocab_size,
        "command": command_line("bench_decoding.py", argv),
        "sets": {},
    }
    # All that can be refused is refused before anything is measured.
    asked = [
        spread_prompts(case.data, target.tokenizer, args.prompts, args.longest_prompt)
        for case in cases
    ]
    made = {name: ways.of(name) for name in drafts}
    start, longest = time.monotonic(), 0.0
    for number, (case, (prompts, left_out)) in enumerate(zip(cases, asked, strict=True), 1):
        begun = time.monotonic()
        if found["sets"] and begun - start + longest > 60 * args.minutes:
            print(f"{args.minutes:g} minutes are nearly over: the same command goes on")
            break
        print(f"{case.name}: {args.prompts} prompts of {case.data}")
        answering, expected = made[case.draft]
        report, identity = measure(case, target, answering, prompts, args)
        check_rows(report, expected)
        found["sets"][case.name] = {
            "draft": case.draft,
            "set": case.set,
            "out_of_distribution": case.ood,
            "data": str(case.data),
            "data_sha256": file_hash(case.data),
            "left_out": left_out,
            "draft_identity": drafts[case.draft].identity,
            "machine": report.machine,
            **figures_of(report, identity),
        }
        drafts[case.draft].release()
        found["beside_the_paper"] = beside_the_paper(found["sets"])
        found["not_yet_measured"] = [one.name for one in cases[number:]]
        write_results(args.output, found, markdown(found), draw(found))
        longest = max(longest, time.monotonic() - begun)
    print((args.output / "report.md").read_text("utf-8"))


if __name__ == "__main__":
    main()
