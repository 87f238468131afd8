"""Whether answers end in the right number: a module of `evaluate`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import datasets
import evaluate

from .final_numbers import number_match

_DESCRIPTION = """
The share of answers that end in the right number, as GSM8K is scored. The number is the one behind
"####"; or in \\boxed{}; or behind "answer is"; or else the last one of the text.
"""

_INPUTS_DESCRIPTION = """
Args:
    predictions: answers, as texts.
    references: right answers, as texts: the number alone, or behind "####".
    strict: take only numbers behind "####" from the predictions (False).
Returns:
    number_match: the share of predictions with the right number, from 0 to 1.
    low, high: its 95 % interval (Wilson).
    correct, total, unanswered: numbers of predictions; those without a number are unanswered.
Examples:
    >>> import evaluate
    >>> from vtrim_hf.metrics import metric_path
    >>> match = evaluate.load(metric_path("number_match"))
    >>> found = match.compute(
    ...     predictions=["3 + 4 = 7, so the answer is 7.", "about 1,000"],
    ...     references=["Add them. #### 7", "#### 1200"],
    ... )
    >>> found["number_match"], found["correct"], found["total"]
    (0.5, 1, 2)
"""

_CITATION = """
@misc{cobbe2021training,
  author = {Karl Cobbe and Vineet Kosaraju and Mohammad Bavarian and Mark Chen and Heewoo Jun and others},
  title  = {Training Verifiers to Solve Math Word Problems},
  year   = {2021}, eprint = {2110.14168}, archivePrefix = {arXiv}
}
"""  # noqa: E501


class NumberMatch(evaluate.Metric):  # type: ignore[misc]
    """Match of the final number; `evaluate.load` makes it, and its card tells how it is used."""

    def _info(self) -> Any:
        text = datasets.Value("string")
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_INPUTS_DESCRIPTION,
            features=datasets.Features({"predictions": text, "references": text}),
            license="Apache-2.0",
            reference_urls=["https://arxiv.org/abs/2110.14168"],
        )

    def _compute(
        self, predictions: Sequence[str], references: Sequence[str], strict: bool = False
    ) -> dict[str, Any]:
        return number_match(predictions, references, strict=strict)
