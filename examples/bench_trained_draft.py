"""What a trained EAGLE-3 draft gains: against the target alone, and against a full vocabulary.

    python examples/bench_trained_draft.py --target smollm2 --draft draft --data test.jsonl \
        --output bench

Every way answers every prompt, greedy, in turns, with the same number of drafted tokens: the
target alone in bfloat16 and in float32 (the faster is the baseline), the draft, and `full`, the
same draft with the rows of the whole vocabulary (`draft.extend`). `--trained-full` adds a draft
that was trained with the whole vocabulary. Then target and draft answer once more in float32,
where the text must be the target's own. The same command goes on where it was interrupted;
`--output` then holds report.md, figures.json, report.png and both decode_report.json.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from bench_arguments import add_dtype, results_folder
from bench_files import check_rows_file, object_or_none
from bench_parts import check_drafts, model_named, rows_of, weights_hash

from vtrim_hf import DecodeReport
from vtrim_hf.chat_data import open_chat_data
from vtrim_hf.measuring_step import (
    REPORT_JSON,
    ExtendedDraft,
    Loadable,
    measure_draft,
    read_prompts,
)
from vtrim_hf.named_models import NamedModel
from vtrim_hf.vocabulary import write_atomically

CALL_JSON = "call.json"
RESAMPLES = 2000


class WithThreshold:
    """A draft that stops below another confidence than the one that is stored with it."""

    def __init__(self, draft: Loadable, threshold: float) -> None:
        self._draft, self._threshold = draft, threshold

    @property
    def identity(self) -> str:
        """A text that is the same for the same draft only."""
        return f"{self._draft.identity}:{self._threshold}"

    def model(self, dtype: str) -> Any:
        """Return the draft."""
        made = self._draft.model(dtype)
        made.generation_config.assistant_confidence_threshold = self._threshold
        return made


def measured(
    output: Path, target: NamedModel, drafts: Mapping[str, Loadable], prompts: Any, **how: Any
) -> DecodeReport:
    """Measure, or go on measuring; what the same call has finished is only read."""
    call = {
        "target": target.identity,
        "drafts": {name: draft.identity for name, draft in drafts.items()},
        "prompts": hashlib.sha256(json.dumps(prompts).encode()).hexdigest(),
        **how,
    }
    done, report = output / CALL_JSON, output / REPORT_JSON
    if report.is_file() and object_or_none(done) == call:
        try:
            there = DecodeReport.load(report)
        except (AttributeError, KeyError, TypeError, ValueError):
            print(f"{report} is damaged: it is measured anew")
        else:
            print(f"{report} is of this call already; delete the folder to measure anew")
            return there
    for rows in sorted(output.glob("*.rows.jsonl")):
        check_rows_file(rows, ["prompt", "entries"])
    done.unlink(missing_ok=True)
    found = measure_draft(
        target,
        drafts["draft"],
        prompts,
        compare={name: draft for name, draft in drafts.items() if name != "draft"},
        output=output,
        on_resumed=lambda number: print(f"going on: {number} prompts are measured already"),
        **how,
    )
    write_atomically(done, json.dumps(call, indent=2).encode())
    return found


def length_ratio(report: DecodeReport, name: str, other: str) -> dict[str, float]:
    """Return the acceptance length of one draft over another's, with its 95 % bootstrap interval.

    Both lengths are those of all prompts together, so it is the prompts that are drawn anew.
    """
    counts = np.array(
        [
            [
                (sum(cell["accepted"]), cell["verified_drafts"])
                for cell in (row["entries"][name], row["entries"][other])
            ]
            for row in report.rows
        ],
        dtype=np.float64,
    )
    draws = np.random.default_rng(0).integers(len(counts), size=(RESAMPLES, len(counts)))
    draws[0] = np.arange(len(counts))
    sums = counts[draws].sum(axis=1)
    lengths = 1 + sums[..., 0] / np.maximum(sums[..., 1], 1)
    ratios = lengths[:, 0] / lengths[:, 1]
    low, high = np.percentile(ratios, [2.5, 97.5])
    return {"ratio": float(ratios[0]), "low": float(low), "high": float(high)}


def figures_of(report: DecodeReport, identity: DecodeReport, facts: Mapping[str, Any]) -> Any:
    """Return all figures as JSON values."""
    drafts = {
        ("trimmed" if name == "draft" else name): entry
        for name, entry in report.entries.items()
        if entry.facts["kind"] != "plain"
    }
    others = [name for name in drafts if name != "trimmed"]
    return {
        **facts,
        "machine": report.machine,
        "baseline": report.baseline,
        "new_tokens": sum(row["plain_tokens"] for row in report.rows),
        "vocab_size": report.entries["draft"].facts["vocab_size"],
        "head_rows": {name: entry.facts["draft_vocab_size"] for name, entry in drafts.items()},
        "tokens_per_second": {
            name: entry.tokens / entry.seconds
            for name, entry in {"plain": report.entries[report.baseline], **drafts}.items()
        },
        "over_plain": {name: vars(entry.speedup) for name, entry in drafts.items()},
        "trimmed_over": {name: vars(report.ratio("draft", name)) for name in others},
        "acceptance_length": {name: entry.acceptance_length for name, entry in drafts.items()},
        "acceptance_length_of_trimmed_over": {
            name: length_ratio(report, "draft", name) for name in others
        },
        "acceptance_by_position": {
            name: list(entry.acceptance_by_position) for name, entry in drafts.items()
        },
        "draft_ms_a_token": {name: entry.draft_step_ms for name, entry in drafts.items()},
        "head_share": {name: entry.share_by_part["draft_head"] for name, entry in drafts.items()},
        "identical_in_float32": [
            sum(row["entries"]["draft"]["identical"] for row in identity.rows),
            len(identity.rows),
        ],
    }


def markdown(report: DecodeReport, found: Mapping[str, Any]) -> str:
    """Return what people read."""
    machine = report.machine
    versions = ", ".join(f"{name} {v}" for name, v in machine["versions"].items() if v)
    drafting = [entry.facts for entry in report.entries.values() if entry.facts["kind"] != "plain"]
    thresholds = ", ".join(str(one["assistant_confidence_threshold"]) for one in drafting)

    def spread(name: str, s: Mapping[str, float]) -> str:
        return (
            f"{name}: {s['median']:.3f} (95 % {s['low']:.3f} to {s['high']:.3f}; quartiles "
            f"{s['q25']:.3f} to {s['q75']:.3f})"
        )

    lines = [spread(f"{n} / {report.baseline}", s) for n, s in found["over_plain"].items()]
    lines += [spread(f"trimmed / {n}, speed", s) for n, s in found["trimmed_over"].items()]
    lines += [
        f"acceptance length, {n}: {v or 1:.3f}" for n, v in found["acceptance_length"].items()
    ]
    lines += [
        f"acceptance length, trimmed / {name}: {part['ratio']:.3f} (95 % {part['low']:.3f} to "
        f"{part['high']:.3f})"
        for name, part in found["acceptance_length_of_trimmed_over"].items()
    ]
    lines += [
        f"acceptance by position, {name}: {' '.join(f'{share:.3f}' for share in shares)}"
        for name, shares in found["acceptance_by_position"].items()
    ]
    lines += [f"head's share of the time, {n}: {v:.1%}" for n, v in found["head_share"].items()]
    same, number = found["identical_in_float32"]
    lines.append(f"texts in float32 that are the target's own: {same} of {number}")
    lines += [f"note: {note}" for note in report.notes]
    return "\n".join(
        [
            f"{found['draft']} for {found['target']}: {len(report.rows)} prompts of "
            f"{found['data']} ({found['data_fingerprint']}), greedy, at most "
            f"{found['max_new_tokens']} new tokens ({found['new_tokens']:,} by the target alone), "
            f"n = {found['draft_length']} for all, thresholds {thresholds}, {found['dtype']}",
            "",
            f"{machine['gpu'] or machine['cpu']}, {machine['threads']} threads of "
            f"{machine['cores']} cores, Python {machine['python']}, {versions}",
            "",
            report.table(),
            "",
            *(f"- {line}" for line in lines),
            "",
            f"    {found['command']}",
            "",
        ]
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", required=True, help="Hub id, folder or smollm2")
    parser.add_argument("--draft", required=True, help="folder or Hub id of the trained draft")
    parser.add_argument("--data", required=True, help="chat data; last user turns are prompts")
    parser.add_argument("--trained-full", help="a draft trained with the whole vocabulary")
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--draft-length", type=int, default=4)
    parser.add_argument("--threshold", type=float, help="for all, instead of each draft's own")
    add_dtype(parser, "of target and drafts")
    parser.add_argument("--output", type=results_folder, default=Path("bench_trained_draft"))
    args = parser.parse_args(argv)
    if min(args.prompts, args.max_new_tokens, args.draft_length) < 1:
        parser.error("--prompts, --max-new-tokens and --draft-length must be at least 1")
    if args.threshold is not None and not 0 <= args.threshold <= 1:
        parser.error(f"--threshold must lie in [0, 1], got {args.threshold}")

    target, trained = model_named(args.target), NamedModel(args.draft)
    rows_of(trained, target)
    try:
        prompts = read_prompts(args.data, target.tokenizer, args.prompts)
    except (OSError, ValueError) as error:
        raise SystemExit(f"--data {args.data} cannot be read: {error}") from error
    if len(prompts) < args.prompts:
        raise SystemExit(f"{args.data} holds {len(prompts)} prompts, asked for {args.prompts}")
    drafts: dict[str, Loadable] = {"draft": trained, "full": ExtendedDraft(trained, target)}
    named = [trained]
    if args.trained_full:
        whole = NamedModel(args.trained_full)
        named.append(whole)
        rows = rows_of(whole, target)
        if rows != target.vocab_size:
            raise SystemExit(
                f"--trained-full {whole} has {rows:,} rows, the target's vocabulary "
                f"{target.vocab_size:,}: name a draft of vtrim train --vocabulary full"
            )
        drafts["trained_full"] = whole
    check_drafts(target, named, args.dtype)
    if args.threshold is not None:
        drafts = {name: WithThreshold(draft, args.threshold) for name, draft in drafts.items()}
    same = {"max_new_tokens": args.max_new_tokens, "draft_length": args.draft_length}
    report = measured(
        args.output,
        target,
        drafts,
        prompts,
        dtype=args.dtype,
        plain_dtypes=["float32", "bfloat16"],
        **same,
    )
    alone = {"draft": drafts["draft"]}
    there = args.output / "float32"
    identity = measured(there, target, alone, prompts, dtype="float32", plain_dtypes=[], **same)

    words = sys.argv[1:] if argv is None else argv
    identify = open_chat_data(args.data).identity
    facts = {
        **{name: value for name, value in vars(args).items() if name != "output"},
        "data_fingerprint": None if identify is None else identify(),
        "draft_identity": trained.identity,
        "draft_weights": weights_hash(trained),
        "target_identity": target.identity,
        "command": shlex.join(["python", "examples/bench_trained_draft.py", *words]),
    }
    found = figures_of(report, identity, facts)
    text = markdown(report, found)
    write_atomically(args.output / "figures.json", json.dumps(found, indent=2).encode())
    write_atomically(args.output / "report.md", text.encode())
    report.plot(args.output / "report.png")
    print(text)


if __name__ == "__main__":
    main()
