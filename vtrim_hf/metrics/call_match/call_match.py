"""Whether answers make the right function calls: a module of `evaluate`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import datasets
import evaluate

from .function_calls import call_match

_DESCRIPTION = """
The share of answers whose function calls, written as JSON, are exactly the right ones, in any
order: the same functions with the same arguments.
"""

_INPUTS_DESCRIPTION = """
Args:
    predictions: answers, as texts with JSON somewhere in them:
        '[{"name": "add", "arguments": {"a": 1}}]', a single such object, or several of them.
    references: right answers, as JSON texts: a list of calls.
Returns:
    call_match: the share of predictions whose calls are the reference's, from 0 to 1.
    low, high: its 95 % interval (Wilson).
    name_match: the share whose functions are, whatever the arguments.
    correct, total, unreadable: numbers of predictions; what cannot be read is wrong.
Examples:
    >>> import evaluate
    >>> from vtrim_hf.metrics import metric_path
    >>> calls = evaluate.load(metric_path("call_match"))
    >>> found = calls.compute(
    ...     predictions=['[{"name": "add", "arguments": {"a": 1.0}}]', "add(a=1)"],
    ...     references=['[{"name": "add", "arguments": {"a": 1}}]'] * 2,
    ... )
    >>> found["call_match"], found["unreadable"]
    (0.5, 1)
"""

_CITATION = """
@misc{patil2023gorilla,
  author = {Shishir G. Patil and Tianjun Zhang and Xin Wang and Joseph E. Gonzalez},
  title  = {Gorilla: Large Language Model Connected with Massive APIs},
  year   = {2023}, eprint = {2305.15334}, archivePrefix = {arXiv}
}
"""


class CallMatch(evaluate.Metric):  # type: ignore[misc]
    """Match of function calls; `evaluate.load` makes it, and its card tells how it is used."""

    def _info(self) -> Any:
        text = datasets.Value("string")
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_INPUTS_DESCRIPTION,
            features=datasets.Features({"predictions": text, "references": text}),
            license="Apache-2.0",
            reference_urls=["https://gorilla.cs.berkeley.edu/leaderboard.html"],
        )

    def _compute(self, predictions: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
        return call_match(predictions, references)
