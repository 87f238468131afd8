"""What people read of a report: the table of its entries, and notes on its numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .decode_entry import DecodeEntry

_HEADER = [
    "entry",
    "k",
    "tokens/s",
    "ms/token",
    "speed-up (quartiles)",
    "acceptance rate",
    "acceptance length",
    "drafted a round",
    "draft ms/token",
    "draft body",
    "draft head",
    "draft other",
    "prefill",
    "verification",
    "rest",
    "identical",
    "out of vocabulary",
]


def markdown_table(entries: Iterable[DecodeEntry]) -> str:
    """Return a Markdown table with a line per entry."""
    lines = [_HEADER, ["---"] * len(_HEADER), *map(_cells, entries)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _cells(entry: DecodeEntry) -> list[str]:
    def shown(value: float | None, form: str) -> str:
        return "-" if value is None else format(value, form)

    kept = entry.facts.get("draft_vocab_size")
    speedup = entry.speedup
    parts = entry.share_by_part
    return [
        entry.name,
        "-" if kept is None else f"{kept:,}",
        f"{entry.tokens_per_second:.1f}",
        f"{entry.ms_per_token:.1f}",
        f"{speedup.median:.2f} ({speedup.q25:.2f} to {speedup.q75:.2f})",
        shown(entry.acceptance_rate, ".1%"),
        shown(entry.acceptance_length, ".2f"),
        shown(entry.drafted_per_round, ".1f"),
        shown(entry.draft_step_ms, ".2f"),
        *(f"{share:.1%}" for share in parts.values()),
        shown(entry.identical_share, ".0%"),
        shown(entry.oov_share, ".1%"),
    ]


def notes_on(
    entries: Mapping[str, DecodeEntry], baseline: str, settings: Mapping[str, Any]
) -> list[str]:
    """Return what a reader of the numbers should know, entry by entry."""
    notes = []
    for name, entry in entries.items():
        if entry.facts["kind"] != "plain" and entry.speedup.median <= 1:
            notes.append(_no_gain(entry, entries[baseline]))
        if entry.drafted_outside_vocabulary:
            notes.append(
                f"{name}: {entry.drafted_outside_vocabulary} of {entry.drafted} draft tokens lie "
                "outside the draft's kept ids, so its id map is broken"
            )
        if entry.differences:
            notes.append(_difference_note(entry, str(settings["identity_dtype"])))
    return notes


def _no_gain(entry: DecodeEntry, plain: DecodeEntry) -> str:
    if not entry.verified_drafts:
        return f"{entry.name}: no gain ({entry.speedup.median:.2f}): it drafted nothing"
    forward_ms = 1000 * entry.seconds / entry.target_forwards
    parts = entry.share_by_part
    drafting = sum(share for part, share in parts.items() if part.startswith("draft_"))
    return (
        f"{entry.name}: no gain, {entry.speedup.median:.2f} times plain speed. A round takes "
        f"{forward_ms:.1f} ms against {plain.ms_per_token:.1f} ms a plain token, so it must give "
        f"more than {forward_ms / plain.ms_per_token:.2f} tokens and gives "
        f"{entry.tokens / entry.target_forwards:.2f} (acceptance length "
        f"{entry.acceptance_length:.2f}); the draft takes {drafting:.0%} of the time, its head "
        f"{parts['draft_head']:.0%}"
    )


def _difference_note(entry: DecodeEntry, dtype: str) -> str:
    ties = sum(bool(difference["near_tie"]) for difference in entry.differences)
    count = len(entry.differences)
    note = f"{entry.name}: {count} texts differ from plain decoding in {dtype}, {ties} of them "
    note += "at near-ties, where the two best logits are closer than that dtype can tell"
    if ties < count:
        return note + "; the others mean that this way of decoding changes what the target says"
    return note + ": verifying several tokens at once rounds otherwise than one by one"
