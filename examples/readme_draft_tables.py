"""README's tables of drafts: what they gain, in and outside of their domain, and why."""

from __future__ import annotations

from pathlib import Path

import readme_parts as parts
from readme_parts import EVIDENCE, percent, spread, table

TARGETS = {"smollm2": "SmolLM2-135M-Instruct"}  # models that have a short name
# The score of each task of bench_task_quality.py: a module of `evaluate` that the package has.
SCORES = {"math": "number_match", "ner": "entity_f1", "function_calling": "call_match"}
# Ways of bench_decoding.py that stand beside a trained draft.
CONTENDERS = ("trained_full", "full", "fixed_32000", "optimised", "lookup")


def one_draft(domain: str) -> str:
    """Return what one trained draft gained: the target alone, `extend`, and the draft."""
    found = parts.read(f"trained_drafts/{domain}/figures.json")
    speeds = found["tokens_per_second"]
    rows = [["target alone", f"{found['vocab_size']:,}", f"{speeds['plain']:.1f}", "1.00", "", ""]]
    names = {"full": "the draft with the full vocabulary (`extend`)", "trimmed": "the draft"}
    names = {"trained_full": "a draft trained with the full vocabulary", **names}
    for name, words in names.items():
        if name in found["over_plain"]:
            rows.append(
                [
                    words,
                    f"{found['head_rows'][name]:,}",
                    f"{speeds[name]:.1f}",
                    spread(found["over_plain"][name]),
                    f"{found['acceptance_length'][name]:.2f}",
                    percent(found["head_share"][name]),
                ]
            )
    heads = ["", "head rows", "tokens/s", "over the target alone", "acceptance length"]
    return table([*heads, "head's share of the time"], rows)


def demo() -> str:
    """Return what `make demo` prints of its drafts: its decode_report.json is the evidence."""
    found = parts.read("demo/decode_report.json")
    names = {
        found["baseline"]: "target alone",
        "full": "full (`extend`)",
        "draft": "trimmed",
        "shipped": "the draft that ships",
    }
    width = found["entries"]["draft"]["facts"]["vocab_size"]
    rows = []
    for name, words in names.items():
        entry = found["entries"][name]
        accepted = entry["acceptance_length"]
        rows.append(
            [
                words,
                f"{entry['facts'].get('draft_vocab_size') or width:,}",
                f"{entry['tokens_per_second']:.1f}",
                spread(entry["speedup"]) if accepted else "1.00",
                f"{accepted:.2f}" if accepted else "",
            ]
        )
    return table(["", "head rows", "tokens/s", "over the target alone", "acceptance length"], rows)


def trained_drafts() -> str:
    """Return a line for every draft that was trained and measured."""
    rows = []
    for place in sorted((EVIDENCE / "trained_drafts").glob("*/figures.json")):
        found = parts.read(str(place.relative_to(EVIDENCE)))
        ratio = found["acceptance_length_of_trimmed_over"]["full"]["ratio"]
        same, number = found["identical_in_float32"]
        name, target = place.parent.name, Path(found["target"]).name
        rows.append(
            [
                f"[{name}](examples/evidence/trained_drafts/{name}/report.md)",
                TARGETS.get(target, target),
                f"{found['head_rows']['trimmed']:,}",
                str(found["draft_length"]),
                f"{found['acceptance_length']['trimmed']:.2f}",
                spread(found["over_plain"]["trimmed"]),
                spread(found["trimmed_over"]["full"]),
                f"{ratio:.2f}",
                f"{same} of {number}",
            ]
        )
    heads = ["draft", "target", "head rows", "drafted a round", "acceptance length"]
    heads += ["over the target alone"]
    heads += ["over `extend`", "acceptance length over its", "the target's own texts (float32)"]
    return table(heads, rows)


def draft_length() -> str:
    """Return what other draft lengths, thresholds and schedules gave."""
    ways = parts.read("draft_length/wikisql/draft_length.json")["ways"]
    rows = [
        [name, spread(row["over_base"]), spread(row["over_plain"])] for name, row in ways.items()
    ]
    return table(["way of drafting", "over 4 tokens", "over the target alone"], rows)


def none_class() -> str:
    """Return what a learnt class "none of these" saves of the time, beside what else could."""
    found = parts.read("none_class/wikisql/figures.json")
    rules = {
        "none of these": "the class",
        "confidence 0.2": "a threshold of 0.2",
        "oracle of outside": "an oracle",
    }
    heads = ["head rows", "tokens outside", *(f"saved by {words}" for words in rules.values())]
    rows = [
        [
            f"{size['k']:,}",
            percent(size["outside"]),
            *(percent(1 - size["rules"][name]["time"]) for name in rules),
        ]
        for size in found["sizes"]
    ]
    return table(heads, rows)


def decoding() -> str:
    """Return how trained drafts did on every set of prompts; their own way beside others."""
    rows = []
    for one in parts.read("decoding/figures.json")["sets"].values():
        ways = one["ways"]
        trimmed, (same, number) = ways["trimmed"], one["identical_in_float32"]
        rows.append(
            [
                f"{one['draft']} on {one['set']}",
                f"{trimmed['head_rows']:,}",
                f"{trimmed['acceptance_length']:.2f}",
                percent(trimmed["out_of_vocabulary"]),
                spread(trimmed["over_plain"]),
                *(spread(ways[way]["trimmed_over"]) if way in ways else "" for way in CONTENDERS),
                f"{same} of {number}",
            ]
        )
    heads = ["draft and prompts", "head rows", "acceptance length", "outside of the head"]
    heads += ["over the target alone", *(f"over `{way}`" for way in CONTENDERS)]
    return table([*heads, "own texts (float32)"], rows)


def vllm() -> str:
    """Return how trained drafts did in vLLM; in brackets the rounds' lowest and highest ratio."""
    found = parts.read("vllm/figures.json")
    rows = []
    for name, one in found["domains"].items():
        for at_once, cell in one["cells"].items():
            taken, speeds = cell["acceptance"], cell["tokens_per_second"]
            ratios = [
                spread({**ratio, "median": ratio["ratio"]})
                for ratio in (*cell["over_plain"].values(), cell["trimmed_over_full"])
            ]
            rows.append(
                [
                    name,
                    at_once,
                    f"{one['head_rows']['trimmed']:,}",
                    f"{speeds['plain']:.1f}",
                    *ratios,
                    *(f"{taken[way]['length']:.2f}" for way in ("trimmed", "full")),
                    " ".join(f"{share:.2f}" for share in taken["trimmed"]["by_position"]),
                ]
            )
    heads = ["domain", "texts at a time", "head rows", "tokens/s of vLLM alone"]
    heads += ["the draft over it", "`extend` over it", "the draft over `extend`"]
    heads += ["acceptance length", "of `extend`", "the draft's accepted by position"]
    return table(heads, rows)


def quality() -> str:
    """Return the scores of tasks with and without a draft, in both dtypes."""
    rows = []
    for name, one in parts.read("quality/figures.json")["tasks"].items():
        for dtype in ("float32", "bfloat16"):
            found = one[dtype]
            same, number = found["identical"]
            metric = SCORES[name]
            scores = [parts.scored(found[way], metric) for way in ("plain", "draft")]
            length = found["acceptance_length"]
            rows.append(
                [
                    f"{name} (`{metric}`)",
                    dtype,
                    *scores,
                    f"{same} of {number}",
                    f"{length['acceptance_length']:.2f}" if length else "",
                ]
            )
    heads = ["task and score", "dtype", "the target alone", "with the draft"]
    return table([*heads, "same texts", "acceptance length"], rows)


def objective() -> str:
    """Return which sizes the objectives choose, and how fast these are beside the fastest."""
    found = parts.read("objective/figures.json")
    rows = []
    for name in found["compared"]["objectives"]:
        chosen = [one["choices"][name] for one in found["domains"].values()]
        cells = [cell for one in chosen for cell in (f"{one['k']:,}", spread(one["of_best"]))]
        ranked = found["mean_rank_correlation"].get(name)
        rows.append([f"`{name}`", *cells, "" if ranked is None else f"{ranked:.2f}"])
    heads = [head for name in found["domains"] for head in (f"k, {name}", "over the fastest size")]
    return table(["objective", *heads, "rank correlation with the speeds"], rows)
