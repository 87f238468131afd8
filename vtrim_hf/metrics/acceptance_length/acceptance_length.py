"""How many tokens a verification of a draft gives: a module of `evaluate`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import datasets
import evaluate

from .verified_drafts import acceptance_length, checked_counts

_DESCRIPTION = """
The acceptance length of speculative (assisted) decoding is how many tokens one verification of a
draft gives: the drafted tokens that the target takes, and the one that it says itself. Over all
texts it is 1 + accepted tokens / verified drafts.
"""

_INPUTS_DESCRIPTION = """
Args:
    predictions: one list a text: of each draft that the target verified, how many of its tokens it
        took, 0 included. The first forward over a prompt verifies nothing and has no entry.
    drafted: how many tokens these drafts had, in the same lists, or one number for all; without it
        there is no acceptance rate.
    seed: of the bootstrap (0).
Returns:
    acceptance_length: at least 1.
    low, high: its 95 % bootstrap interval, whole texts being drawn anew.
    acceptance_by_position: the share of the drafts whose i-th token was taken.
    verifications, accepted, texts: numbers.
    drafted, acceptance_rate: their number, and accepted / drafted; None without `drafted`.
Examples:
    >>> import evaluate
    >>> from vtrim_hf.metrics import metric_path
    >>> length = evaluate.load(metric_path("acceptance_length"))
    >>> found = length.compute(predictions=[[2, 0, 3], [1]], drafted=3)
    >>> found["acceptance_length"], found["acceptance_by_position"], found["acceptance_rate"]
    (2.5, [0.75, 0.5, 0.25], 0.5)
"""

_CITATION = """
@misc{leviathan2022fast,
  author = {Yaniv Leviathan and Matan Kalman and Yossi Matias},
  title  = {Fast Inference from Transformers via Speculative Decoding},
  year   = {2022}, eprint = {2211.17192}, archivePrefix = {arXiv}
}
"""


class AcceptanceLength(evaluate.Metric):  # type: ignore[misc]
    """Acceptance length; `evaluate.load` makes it, and its card tells how it is used."""

    def _info(self) -> Any:
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_INPUTS_DESCRIPTION,
            features=datasets.Features(
                {"predictions": datasets.Sequence(datasets.Value("int64"))}
            ),
            license="Apache-2.0",
            reference_urls=["https://arxiv.org/abs/2211.17192"],
        )

    def compute(self, *, predictions: Any = None, references: Any = None, **options: Any) -> Any:
        """Compute the figures of what is given here, or was added before.

        Raises:
            ValueError: if that is nothing, or no lists of counts.
        """
        if predictions is None and self.writer is None:
            raise ValueError("predictions must be given, or added before, got None")
        return super().compute(predictions=predictions, references=references, **options)

    def add_batch(self, *, predictions: Any = None, **others: Any) -> None:
        """Add some texts; what is no whole number is refused, `datasets` would cut it to one."""
        if isinstance(predictions, Iterable) and not isinstance(predictions, str):
            predictions = [
                self._checked(text, f"text {number}") for number, text in enumerate(predictions)
            ]
        super().add_batch(predictions=predictions, **others)

    def add(self, *, prediction: Any = None, **others: Any) -> None:
        """Add one text, of which the same holds."""
        super().add(prediction=self._checked(prediction, "the text"), **others)

    def _checked(self, text: Any, where: str) -> Any:
        """Return a text's counts; what is no list is left for `datasets` to refuse."""
        if isinstance(text, str) or not isinstance(text, Iterable):
            return text
        return checked_counts(text, where)

    def _compute(
        self,
        predictions: Sequence[Sequence[int]],
        drafted: int | Iterable[Sequence[int]] | None = None,
        seed: int = 0,
    ) -> dict[str, Any]:
        return acceptance_length(predictions, drafted, seed=seed)
