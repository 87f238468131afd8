"""Named entities in answers that are JSON, and how many are the right ones.

It stands alone: it is copied beside `entity_f1.py` wherever `evaluate` puts that.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

_RESAMPLES = 1000
_WRAPPERS = ("entities", "named_entities", "namedentities")
_TEXT_KEYS = ("text", "entity", "name", "value", "word", "mention", "span")
_KIND_KEYS = ("type", "kind", "label", "category", "entity_type", "entity_group", "class")
_BEGINS_JSON = re.compile(r'[\[{]\s*["\[\]{}]')

Entities = Counter[tuple[str, str]]
"""How often each entity is listed: (kind, text)."""


def entities_in(text: str) -> Entities | None:
    """Read the entities that an answer lists.

    The first JSON value of the text that lists entities counts, whatever stands around it, such as
    a code fence: `{"person": ["Ada"]}`, `{"person": "Ada"}`, `[{"text": "Ada", "type": "person"}]`
    and the same inside `{"entities": ...}`; if none lists any, `{}` and the like list none. Kinds
    are compared by their letters and digits in lower case; texts in lower case, without white
    space and in Unicode's form NFKC, since sentences that were cut into words have spaces that
    nobody writes.

    Returns:
        The entities, each as often as it is listed; None if there is no such value, or it breaks
        off, as that of an answer does that is cut.
    """
    empty: Entities | None = None
    for value in _json_values(text):
        try:
            pairs = _pairs(value)
        except RecursionError:
            return None
        if pairs:
            return Counter((_plain_kind(kind), _plain_text(entity)) for kind, entity in pairs)
        if pairs is not None:
            empty = Counter()
    return empty


def entity_f1(
    predictions: Sequence[str], references: Sequence[str], *, seed: int = 0
) -> dict[str, Any]:
    """Tell how many of the entities of some texts are found, and how many of the found are right.

    All entities of all texts count alike (micro average). An entity is right if kind and text are;
    one that is listed twice must be in the reference twice.

    Args:
        predictions: answers.
        references: right answers, as JSON.
        seed: of the bootstrap.

    Returns:
        entity_f1; low and high, its 95 % interval, by drawing whole texts anew 1,000 times;
        precision, 0 if nothing is listed though there is something to find, and recall, 1 if
        there is nothing to find;
        correct, predicted and gold, numbers of entities;
        exact, the share of texts of which all is right;
        total, the number of texts; unreadable, predictions that list nothing that can be read,
        which count as listing no entity and are never exact;
        by_kind, for every kind in the references, by its letters and digits: f1 and gold.

    Raises:
        ValueError: if there is nothing to compare, the lengths differ, or a reference cannot be
            read.
    """
    if not predictions or len(predictions) != len(references):
        raise ValueError(
            "predictions and references must be as many, and at least one, got "
            f"{len(predictions)} and {len(references)}"
        )
    found: list[Entities] = []
    right: list[Entities] = []
    unreadable = exact = 0
    for place, (prediction, reference) in enumerate(zip(predictions, references, strict=True)):
        gold = entities_in(reference)
        if gold is None:
            raise ValueError(
                f"reference {place} must be a JSON object of lists by kind, got {reference[:80]!r}"
            )
        given = entities_in(prediction)
        unreadable += given is None
        exact += given == gold
        found.append(Counter() if given is None else given)
        right.append(gold)
    both = [given & gold for given, gold in zip(found, right, strict=True)]
    correct, predicted, wanted = (
        sum(part.total() for part in some) for some in (both, found, right)
    )
    # F1 is 2 correct / (predicted + gold), a ratio of sums over the texts
    parts = [
        (2 * hits.total(), given.total() + gold.total())
        for hits, given, gold in zip(both, found, right, strict=True)
    ]
    low, high = _interval(np.asarray(parts, dtype=np.float64), seed)
    return {
        "entity_f1": _f1(correct, predicted, wanted),
        "low": low,
        "high": high,
        "precision": correct / predicted if predicted else float(not wanted),
        "recall": correct / wanted if wanted else 1.0,
        "correct": correct,
        "predicted": predicted,
        "gold": wanted,
        "exact": exact / len(right),
        "unreadable": unreadable,
        "total": len(right),
        "by_kind": _by_kind(both, found, right),
    }


def _by_kind(*counted: Sequence[Entities]) -> dict[str, dict[str, Any]]:
    """Return F1 and gold of each kind, from what is correct, predicted and gold in each text."""
    correct, predicted, wanted = (sum(map(_kinds, some), Counter[str]()) for some in counted)
    return {
        kind: {"f1": _f1(correct[kind], predicted[kind], number), "gold": number}
        for kind, number in sorted(wanted.items())
    }


def _kinds(entities: Entities) -> Counter[str]:
    found: Counter[str] = Counter()
    for (kind, _), count in entities.items():
        found[kind] += count
    return found


def _f1(correct: int, predicted: int, wanted: int) -> float:
    return 2 * correct / (predicted + wanted) if predicted + wanted else 1.0


def _interval(parts: np.ndarray, seed: int) -> tuple[float, float]:
    """Draw whole texts anew; parts [texts, 2] are numerators and denominators of one ratio."""
    draw = np.random.default_rng(seed).integers
    sums = np.stack(
        [parts[draw(len(parts), size=len(parts))].sum(axis=0) for _ in range(_RESAMPLES)]
    )
    above, below = sums[:, 0], sums[:, 1]
    ratios = np.where(below > 0, above / np.maximum(below, 1), 1.0)
    low, high = np.percentile(ratios, [2.5, 97.5])
    return float(low), float(high)


def _json_values(text: str) -> Iterator[Any]:
    """Give the JSON objects and lists of a text, until one that begins like such breaks off."""
    decoder = json.JSONDecoder()
    end = 0
    for match in re.finditer(r"[\[{]", text):
        if match.start() < end:
            continue
        try:
            value, end = decoder.raw_decode(text, match.start())
        except (ValueError, RecursionError):
            if _BEGINS_JSON.match(text, match.start()):
                return
            continue
        yield value


def _pairs(value: Any) -> list[tuple[str, str]] | None:
    """Return kinds and texts, or None if a value is no list of entities."""
    if isinstance(value, Mapping):
        lowered = {str(key).lower(): inner for key, inner in value.items()}
        if len(lowered) == 1 and (wrapper := next(iter(lowered))) in _WRAPPERS:
            return _pairs(lowered[wrapper])
        one = _one_entity(lowered)
        return _by_kinds(value) if one is None else [one]
    if isinstance(value, list) and all(isinstance(item, Mapping) for item in value):
        listed = [_pairs(item) for item in value]
        return [pair for pairs in listed if pairs is not None for pair in pairs]
    return None


def _one_entity(lowered: Mapping[str, Any]) -> tuple[str, str] | None:
    texts = [lowered[key] for key in _TEXT_KEYS if isinstance(lowered.get(key), str)]
    kinds = [lowered[key] for key in _KIND_KEYS if isinstance(lowered.get(key), str)]
    return (kinds[0], texts[0]) if texts and kinds else None


def _by_kinds(value: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what lists by kind hold; what is neither a text nor an entity is left out."""
    pairs = []
    for kind, inner in value.items():
        for item in [inner] if isinstance(inner, str) else _items(inner):
            if isinstance(item, str):
                pairs.append((str(kind), item))
            elif isinstance(item, Mapping):
                texts = [item[key] for key in _TEXT_KEYS if isinstance(item.get(key), str)]
                pairs += [(str(kind), text) for text in texts[:1]]
    return pairs


def _items(value: Any) -> Iterable[Any]:
    return value if isinstance(value, list) else ()


def _plain_kind(kind: str) -> str:
    return "".join(letter for letter in _folded(kind) if letter.isalnum())


def _plain_text(text: str) -> str:
    return "".join(_folded(text).split())


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold()
