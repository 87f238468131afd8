"""Which share of the tokens of some texts a vocabulary holds: a module of `evaluate`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import datasets
import evaluate

from .covered_tokens import checked_ids, token_coverage

_CONFIGS = ("default", "texts")

_DESCRIPTION = """
Token coverage is the share of the tokens of some texts, each as often as it is said, that a
vocabulary holds. Of a draft model with a trimmed vocabulary it is the share of its target's tokens
that the draft is able to propose: token_coverage = covered_tokens / tokens.
"""

_INPUTS_DESCRIPTION = """
Args:
    predictions: what the target said, or must say. Token ids, one list a text; or texts, if the
        module was loaded with the configuration "texts".
    kept_ids: the ids that the vocabulary holds: a list, an array or a tensor.
    tokenizer: the target's, or its Hub id or folder. Needed for texts, which are encoded as they
        are, without special tokens; with ids it gives the text of those that are missed.
    most_missed: how many of the missed ids are named, the most frequent ones (20).
    seed: of the bootstrap (0).
Returns:
    token_coverage: the share, from 0 to 1.
    low, high: its 95 % bootstrap interval, whole texts being drawn anew.
    tokens, covered_tokens: numbers of tokens.
    distinct_tokens, distinct_missed: numbers of ids.
    whole_texts: the share of texts of which every token is held.
    most_missed: by falling count, dictionaries of id, count and text.
Examples:
    >>> import evaluate
    >>> from vtrim_hf.metrics import metric_path
    >>> coverage = evaluate.load(metric_path("token_coverage"))
    >>> found = coverage.compute(predictions=[[5, 7, 5], [5, 9]], kept_ids=[5, 7])
    >>> found["token_coverage"], found["most_missed"]
    (0.8, [{'id': 9, 'count': 1, 'text': None}])
"""

_CITATION = """
@misc{benshoham2026balancing,
  author = {Ofir Ben Shoham},
  title  = {Balancing Coverage and Draft Latency in Vocabulary Trimming for Faster Speculative Decoding},
  year   = {2026}, eprint = {2603.05210}, archivePrefix = {arXiv}
}
"""  # noqa: E501


class TokenCoverage(evaluate.Metric):  # type: ignore[misc]
    """Token coverage; `evaluate.load` makes it, and its card tells how it is used."""

    def _info(self) -> Any:
        if self.config_name not in _CONFIGS:
            raise ValueError(
                f'the configuration must be "default", for token ids, or "texts", got '
                f"{self.config_name!r}"
            )
        ids = datasets.Sequence(datasets.Value("int64"))
        said = datasets.Value("string") if self.config_name == "texts" else ids
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_INPUTS_DESCRIPTION,
            features=datasets.Features({"predictions": said}),
            license="Apache-2.0",
            reference_urls=["https://arxiv.org/abs/2603.05210"],
        )

    def compute(self, *, predictions: Any = None, references: Any = None, **options: Any) -> Any:
        """Compute the figures of what is given here, or was added before.

        Raises:
            ValueError: if that is nothing, or no lists of ids.
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
        """Return a text's ids; what is no list is left for `datasets` to refuse."""
        if self.config_name == "texts" or isinstance(text, str) or not isinstance(text, Iterable):
            return text
        return checked_ids(text, where)

    def _compute(
        self,
        predictions: Sequence[Any],
        kept_ids: Any = None,
        tokenizer: Any = None,
        most_missed: int = 20,
        seed: int = 0,
    ) -> dict[str, Any]:
        if isinstance(tokenizer, str):
            from transformers import AutoTokenizer

            tokenizer = AutoTokenizer.from_pretrained(tokenizer)
        texts = predictions
        if self.config_name == "texts":
            if tokenizer is None:
                raise ValueError(
                    "texts need the tokenizer whose ids the vocabulary holds: pass tokenizer="
                )
            texts = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
        return token_coverage(
            texts,
            kept_ids,
            most_missed=most_missed,
            text_of=None if tokenizer is None else lambda token: str(tokenizer.decode([token])),
            seed=seed,
        )
