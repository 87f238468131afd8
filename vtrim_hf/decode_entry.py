"""What one way of decoding did over all prompts: `DecodeEntry`, computed from measured rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

_TOP_TOKENS = 20
_RESAMPLES = 2000


@dataclass(frozen=True)
class Spread:
    """A number measured once a prompt.

    Attributes:
        median: the value in the middle.
        q25: first quartile.
        q75: third quartile.
        min: smallest value.
        max: largest value.
        low: lower end of the 95 % bootstrap interval of the median.
        high: upper end of it.
    """

    median: float
    q25: float
    q75: float
    min: float
    max: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float], *, seed: int = 0) -> Spread:
        """Return the spread of one value a prompt."""
        data = np.asarray(values, dtype=np.float64)
        draws = np.random.default_rng(seed).integers(len(data), size=(_RESAMPLES, len(data)))
        low, high = np.percentile(np.median(data[draws], axis=1), [2.5, 97.5])
        q25, median, q75 = np.percentile(data, [25, 50, 75])
        numbers = (median, q25, q75, data.min(), data.max(), low, high)
        return cls(*(float(number) for number in numbers))


@dataclass(frozen=True)
class DecodeEntry:
    """One way of decoding: the target alone, or with one draft.

    Attributes:
        name: name in the report.
        facts: what was run: kind ("plain", "assistant" or "generate_kwargs"), class, dtype,
            parameters, draft_vocab_size, vocab_size, num_assistant_tokens,
            assistant_confidence_threshold; None where it does not apply.
        tokens: new tokens of all prompts.
        seconds: seconds of all prompts, prefill included.
        speedup: tokens/s over those of the plain baseline, prompt by prompt.
        target_forwards: forward passes of the target.
        verified_drafts: rounds in which at least one draft token was checked.
        drafted: number of draft tokens.
        accepted: number of accepted draft tokens.
        acceptance_rate: accepted / drafted; None when nothing was drafted.
        acceptance_length: 1 + accepted / verified drafts; None when nothing was verified.
        acceptance_by_position: share of the verified drafts whose i-th token was accepted; they
            sum to acceptance_length - 1.
        drafted_per_round: draft tokens a verified draft.
        draft_step_ms: milliseconds a draft token took, rounds that read the prompt left out.
        seconds_by_part: seconds by part, see `decoding_meter.PARTS`; they sum to `seconds`, but on
            CUDA, where clocks slow a call, to those of a call of their own. How the drafting of
            an EAGLE-3 draft divides, which clocks slow, too, is always told by such a call.
        identical_share: share of prompts whose greedy ids equal plain decoding's; None if sampled.
        differences: first difference of every other prompt, with the gap between the two logits
            and whether it is a near-tie in that dtype.
        oov_share: share of the target's own tokens that the draft has no row for.
        oov_tokens: the most frequent of these: id, count, text.
        drafted_outside_vocabulary: draft tokens outside the kept ids. Any is a broken id map.
    """

    name: str
    facts: dict[str, Any]
    tokens: int
    seconds: float
    speedup: Spread
    target_forwards: int
    verified_drafts: int
    drafted: int
    accepted: int
    acceptance_rate: float | None
    acceptance_length: float | None
    acceptance_by_position: tuple[float, ...]
    drafted_per_round: float | None
    draft_step_ms: float | None
    seconds_by_part: dict[str, float]
    identical_share: float | None
    differences: tuple[dict[str, Any], ...]
    oov_share: float | None
    oov_tokens: tuple[dict[str, Any], ...]
    drafted_outside_vocabulary: int

    @property
    def tokens_per_second(self) -> float:
        """New tokens of all prompts over their seconds."""
        return self.tokens / self.seconds

    @property
    def ms_per_token(self) -> float:
        """Milliseconds a new token."""
        return 1000 * self.seconds / self.tokens

    @property
    def share_by_part(self) -> dict[str, float]:
        """The parts of the time as shares that sum to 1."""
        whole = sum(self.seconds_by_part.values())
        return {part: value / whole for part, value in self.seconds_by_part.items()}


def ratio_of(rows: Sequence[Mapping[str, Any]], name: str, other: str) -> Spread:
    """Return the tokens/s of one entry over those of another, prompt by prompt."""

    def rate(row: Mapping[str, Any], entry: str) -> float:
        cell = row["entries"][entry]
        return float(cell["tokens"] / cell["seconds"])

    return Spread.of([rate(row, name) / rate(row, other) for row in rows])


def _summed(lists: Iterable[Sequence[int]]) -> list[int]:
    total: list[int] = []
    for values in lists:
        total.extend([0] * (len(values) - len(total)))
        for position, value in enumerate(values):
            total[position] += value
    return total


def entry_of(
    name: str, rows: Sequence[Mapping[str, Any]], baseline: str, facts: dict[str, Any]
) -> DecodeEntry:
    """Compute one entry from the rows of all prompts, its speed-up against the baseline."""
    cells = [row["entries"][name] for row in rows]

    def total(key: str) -> Any:
        return sum(cell[key] for cell in cells)

    drafted = sum(_summed(cell["drafted"] for cell in cells))
    by_position = _summed(cell["accepted"] for cell in cells)
    accepted, verified = sum(by_position), total("verified_drafts")
    compared = [cell["identical"] for cell in cells if cell["identical"] is not None]
    missing = _missing_tokens(cells)
    step_tokens = total("step_tokens")
    return DecodeEntry(
        name=name,
        facts=facts,
        tokens=total("tokens"),
        seconds=total("seconds"),
        speedup=ratio_of(rows, name, baseline),
        target_forwards=total("target_forwards"),
        verified_drafts=verified,
        drafted=drafted,
        accepted=accepted,
        acceptance_rate=accepted / drafted if drafted else None,
        acceptance_length=1 + accepted / verified if verified else None,
        acceptance_by_position=tuple(count / verified for count in by_position),
        drafted_per_round=drafted / verified if verified else None,
        draft_step_ms=1000 * total("step_seconds") / step_tokens if step_tokens else None,
        seconds_by_part={
            part: sum(cell["parts"][part] for cell in cells) for part in cells[0]["parts"]
        },
        identical_share=sum(compared) / len(compared) if compared else None,
        differences=tuple(cell["difference"] for cell in cells if cell["difference"]),
        oov_share=None
        if facts["kind"] != "assistant"
        else sum(token["count"] for token in missing) / sum(row["plain_tokens"] for row in rows),
        oov_tokens=tuple(missing[:_TOP_TOKENS]),
        drafted_outside_vocabulary=total("drafted_outside"),
    )


def _missing_tokens(cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    for cell in cells:
        for index, count, text in cell["missing"]:
            token = found.setdefault(index, {"id": index, "count": 0, "text": text})
            token["count"] += count
    return sorted(found.values(), key=lambda token: (-token["count"], token["id"]))
