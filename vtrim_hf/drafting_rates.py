"""What a `DecodeReport` tells of any draft length: conditional acceptance, and times by part.

A report says which share of the drafts had their i-th token accepted. How often that token is
right if all before it were is another number, and one that drafts which end early do not show.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_FEWEST = 20
"""A position that fewer drafts got to says nothing of its own."""
_WHOLE = 0.9
_OUTSIDE = ("verification", "rest")


def acceptance_of(report: Any, entry_name: str) -> tuple[tuple[float, ...], dict[str, Any]]:
    """Return the conditional acceptance by position of a measured draft, and what is known of it.

    A draft that ends because the text does counts only for the positions that it has.

    Args:
        report: a `DecodeReport`.
        entry_name: name of the draft in it.

    Returns:
        The rates, up to the last position that at least 20 drafts got to, and JSON-able facts:
        `coverage` is the share of the target's own tokens that the draft has rows for.

    Raises:
        ValueError: if there is no such draft, or it drafted nothing, or a confidence threshold
            ended more than a tenth of its drafts early.
    """
    entry = _draft_of(report, entry_name)
    drafted = _by_position(report, entry_name, "drafted")
    accepted = _by_position(report, entry_name, "accepted")
    if not entry.verified_drafts or not drafted:
        raise ValueError(
            f"the draft {entry_name!r} of this report drafted nothing, so nothing is known of its "
            "acceptance: measure more prompts, or longer answers"
        )
    threshold = entry.facts.get("assistant_confidence_threshold")
    if threshold and drafted[-1] < _WHOLE * drafted[0]:
        raise ValueError(
            f"of the drafts of {entry_name!r} only {drafted[-1] / drafted[0]:.0%} have "
            f"{len(drafted)} tokens: its confidence threshold of {threshold} ended the others, "
            "and what their next tokens were worth is not known. Measure with "
            "measure_decoding(..., assistant_confidence_threshold=0.0)"
        )
    rates: list[float] = []
    before, there = entry.verified_drafts, entry.verified_drafts
    for has, right in zip(drafted, accepted, strict=True):
        chances = before * has / there if there else 0.0
        if rates and chances < _FEWEST:
            break
        rates.append(min(1.0, right / chances))
        before, there = right, has
    facts = {
        "coverage": 1.0 - (entry.oov_share or 0.0),
        "draft_vocab_size": entry.facts.get("draft_vocab_size"),
        "verified_drafts": entry.verified_drafts,
        "drafted_per_round": entry.drafted_per_round,
        "measured_speedup": entry.speedup.median,
        "prompts": len(report.rows),
    }
    return tuple(rates), facts


def seconds_of(report: Any, entry_name: str) -> dict[str, Any]:
    """Return the times of a measured draft and its target.

    Returns:
        `forward`: seconds by number of tokens, for 1 and for as many as a verification had on
        average, with what `generate` spends besides; `plain`: seconds a token of the report's
        baseline; `step`: rows of the draft's head and seconds a draft token, or None. A pass over
        a prompt counts as a verification only if the draft had proposed something by then.

    Raises:
        ValueError: if the report is too short to tell.
    """
    entry = _draft_of(report, entry_name)
    prompts = len(report.rows)
    # The first plain entry is the target as it is beside the draft; another may be faster.
    own = next(one for one in report.entries.values() if one.facts["kind"] == "plain")
    passes = {one.name: one.target_forwards - prompts for one in (own, report.plain, entry)}
    if min(passes.values()) < 1:
        raise ValueError(
            f"the answers of this report have one token, which tells no times: {passes} passes "
            "after the prompts; measure longer answers (max_new_tokens)"
        )

    def per_pass(one: Any) -> float:
        """Seconds after the prompt, by pass; a clocked pass may have been slower as a whole."""
        outside = sum(float(one.seconds_by_part[name]) for name in _OUTSIDE)
        return _scale(one) * outside / int(passes[one.name])

    alone, checking = per_pass(own), per_pass(entry)
    # An EAGLE-3 draft proposes nothing before the target's first pass, which then checks nothing.
    checks = (
        entry.target_forwards if _checks_in_prompts(report, entry_name) else passes[entry_name]
    )
    tokens = 1.0 + entry.drafted / checks
    step = None
    if entry.draft_step_ms and entry.facts.get("draft_vocab_size"):
        rows = int(entry.facts["draft_vocab_size"])
        step = (rows, _scale(entry) * entry.draft_step_ms / 1000)
    return {
        "forward": {1.0: alone, tokens: max(alone, checking)},
        "plain": per_pass(report.plain),
        "step": step,
    }


def _checks_in_prompts(report: Any, entry_name: str) -> bool:
    """Say whether the passes over the prompts verified drafts.

    A report does not name a draft's body. Of a standalone one, every pass of some answer had a
    draft to check; of an EAGLE-3 one, the first pass never has.
    """
    cells = [row["entries"][entry_name] for row in report.rows]
    return any(cell["verified_drafts"] == cell["target_forwards"] for cell in cells)


def _scale(entry: Any) -> float:
    """Return what turns the clocked parts of a call into those of the timed call."""
    whole = sum(entry.seconds_by_part.values())
    if not whole > 0:
        raise ValueError(
            f"the parts of {entry.name!r} were not timed in this report: measure it again"
        )
    return float(entry.seconds / whole)


def _draft_of(report: Any, entry_name: str) -> Any:
    drafts = {n: one for n, one in report.entries.items() if one.facts["kind"] == "assistant"}
    if entry_name not in drafts:
        raise ValueError(
            f"no draft {entry_name!r} in this report, it has {[*drafts] or 'none'}: name one that "
            "is a model"
        )
    return drafts[entry_name]


def _by_position(report: Any, entry_name: str, what: str) -> list[int]:
    total: list[int] = []
    for row in report.rows:
        cell: Mapping[str, Any] = row["entries"][entry_name]
        total += [0] * (len(cell[what]) - len(total))
        for position, number in enumerate(cell[what]):
            total[position] += number
    return total
