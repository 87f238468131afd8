"""How many named entities an answer finds, and finds rightly: a module of `evaluate`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import datasets
import evaluate

from .entity_lists import entity_f1

_DESCRIPTION = """
F1 of named entities that a model lists as JSON: an entity is right if its kind and its text are,
and all entities of all texts count alike: entity_f1 = 2 correct / (predicted + gold).
"""

_INPUTS_DESCRIPTION = """
Args:
    predictions: answers, as texts with JSON somewhere in them: '{"person": ["Ada"]}', or
        '[{"text": "Ada", "type": "person"}]'.
    references: right answers, as JSON texts: '{"person": ["Ada"]}'; '{}' for no entity.
    seed: of the bootstrap (0).
Returns:
    entity_f1: from 0 to 1; 1 if there is no entity in either.
    low, high: its 95 % bootstrap interval, whole texts being drawn anew.
    precision, recall: from 0 to 1.
    correct, predicted, gold: numbers of entities.
    exact: the share of texts of which all is right.
    unreadable, total: numbers of texts; what cannot be read lists no entity.
    by_kind: f1 and gold by kind.
Examples:
    >>> import evaluate
    >>> from vtrim_hf.metrics import metric_path
    >>> entities = evaluate.load(metric_path("entity_f1"))
    >>> found = entities.compute(
    ...     predictions=['{"person": ["Ada Lovelace"], "city": ["Paris"]}'],
    ...     references=['{"person": ["Ada Lovelace"], "city": ["London", "Rome"]}'],
    ... )
    >>> found["entity_f1"], found["precision"], found["gold"]
    (0.4, 0.5, 3)
"""

_CITATION = """
@inproceedings{tjongkimsang2003introduction,
  author    = {Erik F. Tjong Kim Sang and Fien De Meulder},
  title     = {Introduction to the CoNLL-2003 Shared Task: Language-Independent Named Entity Recognition},
  booktitle = {Proceedings of CoNLL-2003},
  year      = {2003}
}
"""  # noqa: E501


class EntityF1(evaluate.Metric):  # type: ignore[misc]
    """F1 of entities; `evaluate.load` makes it, and its card tells how it is used."""

    def _info(self) -> Any:
        text = datasets.Value("string")
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_INPUTS_DESCRIPTION,
            features=datasets.Features({"predictions": text, "references": text}),
            license="Apache-2.0",
            reference_urls=["https://aclanthology.org/W03-0419"],
        )

    def _compute(
        self, predictions: Sequence[str], references: Sequence[str], seed: int = 0
    ) -> dict[str, Any]:
        return entity_f1(predictions, references, seed=seed)
