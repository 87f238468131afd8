"""What a published draft tells of a `DecodeReport`: figures, settings and machine, no rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .plain_facts import system_of

if TYPE_CHECKING:
    from .decode_report import DecodeReport

_SETTINGS = (
    "max_new_tokens",
    "do_sample",
    "warmup",
    "repeats",
    "plain_dtypes",
    "identity_dtype",
    "raw",
    "seed",
)
_MACHINE = ("cpu", "gpu", "device", "cores", "threads", "python", "versions")
_SPREAD = ("median", "q25", "q75", "low", "high")
_MISSED = 20


def decoding_facts(report: DecodeReport, k: int) -> dict[str, Any]:
    """Return what is told of a measurement; unknown facts are None.

    Args:
        report: the measurement.
        k: number of kept ids of the draft that it must be about.

    Raises:
        ValueError: if the report is about a draft of another size.
    """
    draft, plain = report.draft, report.plain
    found = draft.facts.get("draft_vocab_size")
    if found != k:
        raise ValueError(
            f"the decode report is about a draft with {found} kept ids, this one has {k}: measure "
            "this draft with measure_decoding or `vtrim measure`"
        )
    threshold = draft.facts.get("assistant_confidence_threshold")
    return {
        "prompts": len(report.rows),
        "speedup": _spread(draft.speedup),
        "tokens_per_second": draft.tokens_per_second,
        "acceptance_length": draft.acceptance_length,
        "acceptance_rate": draft.acceptance_rate,
        "identical_share": draft.identical_share,
        "draft_step_ms": draft.draft_step_ms,
        "oov_share": draft.oov_share,
        "dtype": draft.facts.get("dtype"),
        "num_assistant_tokens": draft.facts.get("num_assistant_tokens"),
        "assistant_confidence_threshold": threshold,
        "plain": {
            "dtype": plain.facts.get("dtype"),
            "tokens_per_second": plain.tokens_per_second,
        },
        "compared": [
            {
                "name": name,
                "k": entry.facts.get("draft_vocab_size"),
                "speedup": _spread(entry.speedup),
                "tokens_per_second": entry.tokens_per_second,
                "acceptance_length": entry.acceptance_length,
            }
            for name, entry in report.entries.items()
            if entry is not draft and entry.facts.get("kind") != "plain"
        ]
        or None,
        # Further arguments of `generate` may hold anything, so they are not told.
        "settings": {name: report.settings.get(name) for name in _SETTINGS},
        "machine": {
            **{name: report.machine.get(name) for name in _MACHINE},
            "system": system_of(report.machine.get("system")),
        },
    }


def missed_by_target(report: DecodeReport) -> dict[str, Any] | None:
    """Return the most frequent tokens of the target's own answers that the draft cannot say."""
    total = sum(row["plain_tokens"] for row in report.rows)
    tokens: list[Mapping[str, Any]] = list(report.draft.oov_tokens[:_MISSED])
    if not tokens:
        return None
    return {
        "of": "decoding",
        "tokens": [
            {
                "id": token["id"],
                "count": token["count"],
                "share": token["count"] / total,
                "text": token["text"] and token["text"][:200],
            }
            for token in tokens
        ],
    }


def _spread(spread: Any) -> dict[str, float]:
    return {name: getattr(spread, name) for name in _SPREAD}
