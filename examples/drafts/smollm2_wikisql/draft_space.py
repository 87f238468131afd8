"""Choosing a token among the k that a draft can say.

Scores of draft space are [..., k]: row i of the head stands for the token `kept_ids[i]`.
Everything here gives the answer that Transformers' own code would give for the same scores spread
over the target's width, with -inf outside the kept ids, at the price of k numbers instead of V
wherever that is possible. This module knows nothing about models or caches.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import LogitsProcessorList

from .vocabulary import rows_of

# These look at scores only, never at ids, so they give the same answer in draft space.
_ID_FREE = frozenset(
    {
        "TemperatureLogitsWarper",
        "TopKLogitsWarper",
        "TopPLogitsWarper",
        "TopHLogitsWarper",
        "MinPLogitsWarper",
        "TypicalLogitsWarper",
        "EpsilonLogitsWarper",
        "EtaLogitsWarper",
        "InfNanRemoveLogitsProcessor",
        "LogitNormalization",
    }
)
_PENALTY = "RepetitionPenaltyLogitsProcessor"


class DraftSpaceProcessors:
    """The target's logits processors, applied to draft logits.

    Processors that look at scores alone and the repetition penalty run on k numbers. From the
    first processor on that needs the target's ids, scores are spread to V, processed, and gathered
    again.

    Args:
        processors: the processors of the call, in order.
        kept_ids: int64 [k] on the device of the scores, or None if all V ids are kept.
        vocab_size: V.
    """

    def __init__(
        self, processors: LogitsProcessorList, kept_ids: torch.Tensor | None, vocab_size: int
    ) -> None:
        self._processors = [(processor, _kind(processor)) for processor in processors]
        self._kept_ids = kept_ids
        self._vocab_size = vocab_size

    def __bool__(self) -> bool:
        return bool(self._processors)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor | None:
        """Process draft scores that follow a text.

        Args:
            input_ids: the text, int64 [batch, length].
            scores: float32 [batch, k].

        Returns:
            Scores [batch, k], or None if the processors leave nothing to choose from: they forbid
            every kept id, or cannot cope with -inf.
        """
        wide = self._kept_ids is None
        looked_at_ids = False
        for processor, kind in self._processors:
            if kind in _ID_FREE:
                scores = processor(input_ids, scores)
            elif kind == _PENALTY and not wide:
                scores = self._penalise(processor, input_ids, scores)
            else:
                if not wide:
                    scores, wide = widen(scores, self._kept_ids, self._vocab_size), True
                scores = processor(input_ids, scores)
                if kind != _PENALTY:
                    # Said at once: some of those that follow raise when nothing is left.
                    looked_at_ids = True
                    if not _can_choose(scores):
                        return None
        if wide and self._kept_ids is not None:
            scores = scores[:, self._kept_ids]
        return None if looked_at_ids and not _can_choose(scores) else scores

    def _penalise(self, processor: Any, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        rows = rows_of(ids, self._kept_ids)  # type: ignore[arg-type]
        ignored = processor.prompt_ignore_length
        if ignored is not None:
            limit = torch.as_tensor(ignored, device=ids.device).reshape(-1, 1)
            rows = rows.masked_fill(torch.arange(ids.shape[1], device=ids.device) < limit, -1)
        said = torch.zeros(
            scores.shape[0], scores.shape[1] + 1, dtype=torch.bool, device=scores.device
        )
        # Row -1 lands in the extra column, which is cut off again.
        said.scatter_(1, rows.masked_fill(rows < 0, scores.shape[1]), True)
        penalty = processor.penalty
        penalised = torch.where(scores < 0, scores * penalty, scores / penalty)
        return torch.where(said[:, :-1], penalised, scores)


def widen(scores: torch.Tensor, kept_ids: torch.Tensor | None, vocab_size: int) -> torch.Tensor:
    """Spread scores of draft space [..., k] over the target's width [..., V], -inf elsewhere."""
    if kept_ids is None:
        return scores
    wide = scores.new_full((*scores.shape[:-1], vocab_size), -torch.inf)
    wide[..., kept_ids] = scores
    return wide


def choose_rows(scores: torch.Tensor, sample: bool) -> torch.Tensor:
    """Choose one row of the head a batch element, int64 [batch, 1], from scores [batch, k]."""
    if sample:
        return torch.multinomial(scores.softmax(dim=-1), num_samples=1)
    if scores.is_cpu and scores.dtype == torch.float32:
        # NumPy looks at many numbers at a time: a fifth of the time for thousands of rows.
        return torch.from_numpy(scores.detach().numpy().argmax(axis=-1, keepdims=True))
    return scores.argmax(dim=-1, keepdim=True)


def certain(scores: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return the scores of a choice made without chance, [batch, k]: all mass on `rows`."""
    return torch.full_like(scores, -torch.inf).scatter_(1, rows, 0.0)


def _kind(processor: Any) -> str:
    # A processor of someone else's may have the same name and do something else.
    kind = type(processor)
    return kind.__name__ if kind.__module__.startswith("transformers.") else ""


def _can_choose(scores: torch.Tensor) -> bool:
    # The maximum is NaN if any number is, -inf if all are.
    return bool(scores.amax(dim=-1).isfinite().all())
