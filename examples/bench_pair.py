"""What a trimmed head is worth for a real pair of models.

    python examples/bench_pair.py --target Qwen/Qwen2.5-Coder-1.5B-Instruct \
        --draft Qwen/Qwen2.5-Coder-0.5B-Instruct --code-data code/test.jsonl \
        --sql-data sql/test.jsonl --train-data code.answers.jsonl sql.answers.jsonl \
        code/train.jsonl sql/train.jsonl general/train.jsonl --train-shares 5 5 3 3 4

Measures the target alone, Transformers' own assistant path, our draft with the full head and with
a trimmed one. Data are JSON lines with `messages`. All draft with one length, one threshold and a
constant schedule; the length is chosen on other prompts as the best for the full head. The
vocabulary is counted on the training data, best the target's own answers. Finished prompts are
kept beside the output: the same command goes on where it was interrupted. 22 minutes on 2 cores
with 40 new tokens, a given draft length and `--plain-dtypes` (the target alone in its own dtype).
"""

from __future__ import annotations

import argparse
import copy
import json
from pathlib import Path
from typing import Any

from bench_arguments import DTYPES, add_dtype
from transformers import AutoModelForCausalLM, AutoTokenizer

import vtrim_hf as vt
from vtrim_hf.kept_rows import KeptRows

LENGTHS = (2, 3, 4, 5)
GOALS = (  # entry, against, median ratio of tokens/s
    ("untrimmed", "transformers", 1.00),
    ("draft", "untrimmed", 1.05),
    ("draft", "plain", 1.15),
)


def read_prompts(path: Path, start: int, number: int) -> list[Any]:
    """Return what comes before the first answer of each of `number` rows."""
    with path.open(encoding="utf-8") as lines:
        rows = [json.loads(line)["messages"] for line in lines][start : start + number]
    if len(rows) < number:
        raise SystemExit(f"{path} must have {start + number} rows, it has {start + len(rows)}")
    return [row[: [turn["role"] for turn in row].index("assistant")] for row in rows]


def make_drafts(target: Any, small: Any, tokenizer: Any, args: Any) -> tuple[Any, Any]:
    """Return our drafts: with the full head, and with the one the training data ask for."""
    width = target.config.vocab_size
    parts = [
        vt.TokenCounts.from_dataset({str(path): str(path)}, tokenizer, vocab_size=width)
        for path in args.train_data
    ]
    weights = None  # every token counts alike
    if args.train_shares:
        pairs = zip(args.train_shares, parts, strict=True)
        weights = [1e7 * share / part.total() for share, part in pairs]
    found = vt.search_vocabulary(
        vt.TokenCounts.merge(*parts, weights=weights),
        vt.LatencyModel.standalone(small.config),
        required=vt.required_token_ids(tokenizer, target.generation_config),
        min_coverage=args.min_coverage,
    )
    print(
        f"k = {found.k} of {width}, coverage {found.coverage:.2%}, held out "
        f"{found.heldout_coverage:.2%}, a step costs {found.reduction:.1%} less"
    )
    everything = vt.DraftVocabulary.from_ids(range(width), vocab_size=width)
    make = vt.TrimmedDraftForCausalLM.from_draft_model
    return make(small, everything), make(small, found.vocabulary)


def choose_length(target: Any, draft: Any, prompts: list[Any], tokenizer: Any, args: Any) -> int:
    """Return the draft length that is fastest for the untrimmed draft on a few other prompts."""
    drafts = {}
    for length in LENGTHS:
        drafts[f"n={length}"] = copy.copy(draft)  # shares the weights
        drafts[f"n={length}"].generation_config = copy.deepcopy(draft.generation_config)
        drafts[f"n={length}"].generation_config.num_assistant_tokens = length
    report = vt.measure_decoding(
        target,
        draft,
        prompts,
        tokenizer=tokenizer,
        compare=drafts,
        max_new_tokens=args.max_new_tokens // 2,
        assistant_confidence_threshold=args.threshold,
        plain_dtypes=(),
    )
    print(f"\nDraft lengths, untrimmed:\n{report.table()}\n")
    return max(LENGTHS, key=lambda n: report.entries[f"n={n}"].tokens_per_second)


def print_report(report: vt.DecodeReport, limit: int) -> None:
    """Print the tables, the goals and what there is to know about the numbers."""
    for domain, first in (("code", 0), ("sql", limit)):
        print(f"\n{domain}:\n{report.subset(range(first, first + limit)).table()}")
    print(f"\nall:\n{report.table()}\n")
    for name, other, goal in GOALS:
        ratio = report.ratio(name, report.baseline if other == "plain" else other)
        print(
            f"{name} / {other}: {ratio.median:.3f} (95 % {ratio.low:.3f} to {ratio.high:.3f}), "
            f"goal {goal:.2f}: {'met' if ratio.median >= goal else 'not met'}"
        )
    print("\n".join(f"note: {note}" for note in report.notes))


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", required=True, help="folder or Hub id")
    parser.add_argument("--draft", required=True, help="folder or Hub id, same tokenizer")
    parser.add_argument("--code-data", type=Path, required=True)
    parser.add_argument("--sql-data", type=Path, required=True)
    parser.add_argument("--train-data", type=Path, nargs="+", required=True)
    parser.add_argument(
        "--train-shares", type=float, nargs="+", help="of each, equal if not given"
    )
    parser.add_argument("--limit", type=int, default=20, help="prompts a domain")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--draft-length", type=int, help="instead of choosing one")
    parser.add_argument("--threshold", type=float, default=0.4)
    parser.add_argument("--min-coverage", type=float, default=0.97)
    add_dtype(parser, "of both models")
    parser.add_argument(
        "--plain-dtypes", nargs="*", choices=DTYPES, default=["float32", "bfloat16"]
    )
    parser.add_argument("--output", type=Path, default=Path("bench_pair.json"))
    args = parser.parse_args()

    tokenizer = AutoTokenizer.from_pretrained(args.target)
    load = AutoModelForCausalLM.from_pretrained
    target, small = (load(name, dtype=args.dtype).eval() for name in (args.target, args.draft))
    small.generation_config.num_assistant_tokens_schedule = "constant"
    untrimmed, trimmed = make_drafts(target, small, tokenizer, args)

    kept = KeptRows.beside(
        args.output,
        {**vars(args), "output": "", "vocabulary": trimmed.config.vocabulary_fingerprint},
    )
    both = (args.code_data, args.sql_data)
    length = kept.rows[0]["length"] if kept.rows else args.draft_length
    if length is None:
        others = [prompt for path in both for prompt in read_prompts(path, args.limit, 1)]
        length = choose_length(target, untrimmed, others, tokenizer, args)
    if not kept.rows:
        kept.add({"length": length})
    report = vt.measure_decoding(
        target,
        trimmed,
        [prompt for path in both for prompt in read_prompts(path, 0, args.limit)],
        tokenizer=tokenizer,
        compare={"transformers": small, "untrimmed": untrimmed},
        max_new_tokens=args.max_new_tokens,
        num_assistant_tokens=length,
        assistant_confidence_threshold=args.threshold,
        plain_dtypes=tuple(args.plain_dtypes),
        on_row=kept.add,
        done=kept.rows[1:],
    )
    report.save(args.output)
    kept.remove()
    print(f"\nn = {length} for all, threshold {args.threshold}, {args.dtype}, {report.machine}")
    print_report(report, args.limit)


if __name__ == "__main__":
    main()
