"""README's tables of vocabularies: their sizes, others' choices, and how much data they take."""

from __future__ import annotations

from typing import Any

import readme_parts as parts
from readme_parts import percent, table

# As the folders of evidence are called, and as people call them; the paper's target comes first.
TOKENIZERS = {
    "llama3": "Llama 3",
    "smollm2": "SmolLM2",
    "qwen2.5-coder-1.5b-instruct": "Qwen2.5",
}
# What others would choose, in bench_vocabulary.py's words and in a column's head.
RIVALS = {
    "vtrim": "`vtrim_hf`",
    "assistant": "nothing required",
    "conversation": "prompts counted in",
    "raw": "raw text of all domains",
    "fixed_general": "fixed 32,000 of `general`",
}
CONTRASTED = ("code", "function_calling", "ner", "sql")
SHOWN_SIZES = (1_000, 10_000)  # of how many conversations, beside all


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
    first, *others = [parts.read(f"vocabulary/{folder}/figures.json") for folder in TOKENIZERS]
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
    found = parts.read(f"vocabulary/{next(iter(TOKENIZERS))}/figures.json")
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
        found = parts.read(f"stability/{folder}/figures.json")["domains"]
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
