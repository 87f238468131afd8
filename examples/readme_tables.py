"""The README's tables of figures, written from the JSON of the measurements.

    python examples/readme_tables.py            # renew them
    python examples/readme_tables.py --check    # say which are not what was measured; exit code 1

Each stands in README.md right below a line `<!-- table: NAME -->`.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
EVIDENCE = ROOT / "examples" / "evidence"
# As the folders of evidence are called, and as people call them; the paper's target comes first.
TOKENIZERS = {
    "llama3": "Llama 3",
    "smollm2": "SmolLM2",
    "qwen2.5-coder-1.5b-instruct": "Qwen2.5",
}
TARGETS = {"smollm2": "SmolLM2-135M-Instruct"}  # models that have a short name
# What others would choose, in bench_vocabulary.py's words and in a column's head.
RIVALS = {
    "vtrim": "`vtrim_hf`",
    "assistant": "nothing required",
    "conversation": "prompts counted in",
    "raw": "raw text of all domains",
    "fixed_general": "fixed 32,000 of `general`",
}
CONTRASTED = ("code", "function_calling", "ner", "sql")
# Ways of bench_decoding.py that stand beside a trained draft.
CONTENDERS = ("trained_full", "full", "fixed_32000", "optimised", "lookup")
SHOWN_SIZES = (1_000, 10_000)  # of how many conversations, beside all
_PLACE = r"(<!-- table: {name} -->\n)((?:\|.*\n)*)"


def spread(found: dict[str, float]) -> str:
    """Return a median with its 95 % interval."""
    return f"{found['median']:.2f} ({found['low']:.2f} to {found['high']:.2f})"


def table(heads: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table, with a line break at its end."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def one_draft(domain: str) -> str:
    """Return what one trained draft gained: the target alone, `extend`, and the draft."""
    found = read(f"trained_drafts/{domain}/figures.json")
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
                    f"{found['head_share'][name]:.1%}".replace("%", " %"),
                ]
            )
    heads = ["", "head rows", "tokens/s", "over the target alone", "acceptance length"]
    return table([*heads, "head's share of the time"], rows)


def trained_drafts() -> str:
    """Return a line for every draft that was trained and measured."""
    rows = []
    for place in sorted((EVIDENCE / "trained_drafts").glob("*/figures.json")):
        found = read(str(place.relative_to(EVIDENCE)))
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
    ways = read("draft_length/wikisql/draft_length.json")["ways"]
    rows = [
        [name, spread(row["over_base"]), spread(row["over_plain"])] for name, row in ways.items()
    ]
    return table(["way of drafting", "over 4 tokens", "over the target alone"], rows)


def none_class() -> str:
    """Return what a learnt class "none of these" saves of the time, beside what else could."""
    found = read("none_class/wikisql/figures.json")
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


def percent(share: float, digits: int = 1) -> str:
    """Return a share for people."""
    return f"{share:.{digits}%}".replace("%", " %")


def default_choice(domain: dict[str, Any]) -> dict[str, Any]:
    """Return what the search chooses by default: weight 0.5, no least coverage."""
    (cell,) = [
        cell for cell in domain["grid"] if (cell["alpha"], cell["min_coverage"]) == (0.5, 0)
    ]
    found: dict[str, Any] = cell["exact"]
    return found


def vocabulary() -> str:
    """Return the size that each domain gets, what it covers and saves, and where it covers less.

    The last line is of the ood sets.
    """
    first, *others = [read(f"vocabulary/{folder}/figures.json") for folder in TOKENIZERS]
    rows = []
    for name, domain in first["domains"].items():
        chosen = default_choice(domain)
        covered, test = chosen["heldout"], chosen["test"]
        interval = f"{100 * covered['low']:.1f} to {100 * covered['high']:.1f}"
        rows.append(
            [
                name,
                f"{domain['conversations']['search']:,}",
                f"{chosen['k']:,}",
                percent(chosen["reduction"]),
                f"{percent(covered['coverage'])} ({interval})",
                percent(test["coverage"]) if test else "",
                *(f"{default_choice(other['domains'][name])['k']:,}" for other in others),
            ]
        )
    shown, *beside = [
        f"{name} (V = {found['facts']['vocab_size']:,})"
        for name, found in zip(TOKENIZERS.values(), (first, *others), strict=True)
    ]
    general = first["crossed"]["general"]
    far = percent(general["ood_weighted"])
    rows.append(
        ["`general`, elsewhere", "", f"{general['k']:,}", "", "", far, *("" for _ in others)]
    )
    heads = ["domain", "conversations counted", f"k*, {shown}", "of a draft step saved"]
    heads += ["held-out coverage", "of its test set"]
    return table([*heads, *(f"k*, {name}" for name in beside)], rows)


def vocabulary_rivals() -> str:
    """Return what the vocabularies cover that others would choose, and what those lack."""
    found = read(f"vocabulary/{next(iter(TOKENIZERS))}/figures.json")
    rows = []
    for name in CONTRASTED:
        ways = found["domains"][name]["ways"]
        cells = []
        for way in RIVALS:
            covered, missing = ways[way]["heldout"]["coverage"], ways[way]["required_missing"]
            cells.append(percent(covered) + (f" ({missing})" if missing else ""))
        saved = [percent(ways[way]["reduction"]) for way in ("vtrim", "fixed_general")]
        rows.append([name, f"{ways['vtrim']['k']:,}", *cells, " / ".join(saved)])
    heads = ["domain", "k", *RIVALS.values(), "of a step saved: k / 32,000"]
    return table(heads, rows)


def stability() -> str:
    """Return from how many conversations on the vocabulary of all domains stays."""
    rows = []
    for folder, name in TOKENIZERS.items():
        found = read(f"stability/{folder}/figures.json")["domains"]
        every = found.pop("all domains")
        points = {point["size"]: point for point in every["points"]}
        last = max(points)
        sizes = [
            f"{points[size]['k']['median']:,.0f} ({percent(points[size]['coverage']['median'])})"
            for size in (*SHOWN_SIZES, last)
        ]
        settled = [f"{at:,}" if at else "not yet" for at in every["settled"].values()]
        alone = sum(one["settled"]["k"] is not None for one in found.values())
        rows.append([name, *sizes, *settled, f"{alone} of {len(found)}"])
    heads = ["", *(f"of {size:,}" for size in (*SHOWN_SIZES, last))]
    return table([*heads, "k* settled from", "coverage from", "domains settled alone"], rows)


def decoding() -> str:
    """Return how trained drafts did on every set of prompts; their own way beside others."""
    rows = []
    for one in read("decoding/figures.json")["sets"].values():
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


def objective() -> str:
    """Return which sizes the objectives choose, and how fast these are beside the fastest."""
    found = read("objective/figures.json")
    rows = []
    for name in found["compared"]["objectives"]:
        chosen = [one["choices"][name] for one in found["domains"].values()]
        cells = [cell for one in chosen for cell in (f"{one['k']:,}", spread(one["of_best"]))]
        ranked = found["mean_rank_correlation"].get(name)
        rows.append([f"`{name}`", *cells, "" if ranked is None else f"{ranked:.2f}"])
    heads = [head for name in found["domains"] for head in (f"k, {name}", "over the fastest size")]
    return table(["objective", *heads, "rank correlation with the speeds"], rows)


TABLES: dict[str, Callable[[], str]] = {
    "wikisql": lambda: one_draft("wikisql"),
    "sql": lambda: one_draft("sql"),
    "trained_drafts": trained_drafts,
    "draft_length": draft_length,
    "none_class": none_class,
    "vocabulary": vocabulary,
    "vocabulary_rivals": vocabulary_rivals,
    "stability": stability,
    "decoding": decoding,
    "objective": objective,
}


def read(name: str) -> Any:
    """Return the JSON of a measurement."""
    return json.loads((EVIDENCE / name).read_text(encoding="utf-8"))


def renewed(text: str) -> str:
    """Return a README with all its tables as they were measured.

    Raises:
        ValueError: if a table has no place in it, or several.
    """
    for name, make in TABLES.items():
        made = make()
        text, number = re.subn(
            _PLACE.format(name=name), lambda found, made=made: found[1] + made, text
        )
        if number != 1:
            raise ValueError(f"README.md must have one line <!-- table: {name} -->, has {number}")
    return text


def main() -> None:
    """Renew README.md, or check it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only say whether all is as measured")
    only_check = parser.parse_args().check
    place = ROOT / "README.md"
    text = place.read_text(encoding="utf-8")
    made = renewed(text)
    if made == text:
        print("README.md shows what was measured")
    elif only_check:
        raise SystemExit("README.md differs from examples/evidence: run this without --check")
    else:
        place.write_text(made, encoding="utf-8")
        print("README.md was renewed")


if __name__ == "__main__":
    main()
