"""What a card's metadata says: its mistakes, and the tags that searches find a repository by."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from .front_matter import read_front_matter

_HUB_ID = re.compile(r"[A-Za-z0-9_][\w.-]*(/[A-Za-z0-9_][\w.-]*)?")
_TEXTS = ("library_name", "license", "license_name", "pipeline_tag", "base_model_relation")
_RELATIONS = ("adapter", "merge", "quantized", "finetune")


def check_card(text: str) -> tuple[list[str], list[str]]:
    """Return what is wrong with a card's metadata: errors, and warnings."""
    try:
        card = read_front_matter(text)
    except ValueError as error:
        return [f"invalid YAML: {error}"], []
    if not card:
        return [], ["empty or missing yaml metadata in repo card"]
    errors = [
        f'"{key}" must be a string, got {card[key]!r}'
        for key in _TEXTS
        if key in card and key != "license" and not isinstance(card[key], str)
    ]
    for key in ("tags", "datasets", "metrics"):
        if not isinstance(card.get(key, []), list) and not (
            key != "tags" and isinstance(card[key], str)
        ):
            errors.append(f'"{key}" must be an array, got {card[key]!r}')
        elif bad := [item for item in texts(card, key) if not isinstance(item, str) or not item]:
            errors.append(f'"{key}" must hold strings, got {bad[0]!r}')
    for item in texts(card, "license"):
        if not isinstance(item, str) or item not in known_licenses():
            errors.append(f'"license" must be one of {", ".join(known_licenses())}; got {item!r}')
    for key in ("base_model", "datasets"):
        for item in texts(card, key):
            if not isinstance(item, str) or not _HUB_ID.fullmatch(item) or item in (".", ".."):
                errors.append(f'"{key}" must hold Hub ids, got {item!r}')
    if card.get("base_model_relation", _RELATIONS[0]) not in _RELATIONS:
        errors.append(f'"base_model_relation" must be one of {", ".join(_RELATIONS)}')
    errors += _check_model_index(card.get("model-index", []))
    warnings = [] if "license" in card else ["no license is given"]
    if card.get("license") == "other" and "license_name" not in card:
        warnings.append("license: other needs a license_name")
    return errors, warnings


@lru_cache(maxsize=1)
def known_licenses() -> tuple[str, ...]:
    """Return the identifiers that a card's `license` may have, as the Hub documents them."""
    package = Path(__file__).resolve().parents[1]
    places = [folder / "hub_cards" / "licenses.txt" for folder in (package, package.parent)]
    place = next((place for place in places if place.is_file()), places[0])
    lines = place.read_text(encoding="utf-8").splitlines()
    return tuple(line for line in lines if line and not line.startswith("#"))


def card_of(data: bytes | None) -> dict[str, Any]:
    """Return a card's metadata, empty if it has none that can be read."""
    try:
        return read_front_matter((data or b"").decode("utf-8", "replace")) or {}
    except ValueError:
        return {}


def tags_of(card: Mapping[str, Any], paths: Mapping[str, object]) -> list[str]:
    """Return the tags that the Hub gives a repository with this card and these files."""
    tags = [str(card[key]) for key in ("library_name", "pipeline_tag") if card.get(key)]
    if any(path.endswith(".safetensors") for path in paths):
        tags.append("safetensors")
    tags += [str(tag) for key in ("tags", "language") for tag in texts(card, key)]
    tags += [f"license:{item}" for item in texts(card, "license")]
    tags += [f"dataset:{item}" for item in texts(card, "datasets")]
    for base in texts(card, "base_model"):
        tags.append(f"base_model:{base}")
        if relation := card.get("base_model_relation"):
            tags.append(f"base_model:{relation}:{base}")
    return list(dict.fromkeys(tags))


def texts(card: Mapping[str, Any], key: str) -> list[Any]:
    """Return the values of a key that may hold one value or a list."""
    value = card.get(key)
    return value if isinstance(value, list) else [] if value is None else [value]


def _check_model_index(index: Any) -> list[str]:
    if not isinstance(index, list):
        return ['"model-index" must be an array']
    for entry in index:
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            return ['"model-index" entries need a "name"']
        results = entry.get("results")
        if not isinstance(results, list) or not all(
            isinstance(result, dict) and {"task", "metrics"} <= result.keys() for result in results
        ):
            return ['"model-index" results need "task" and "metrics"']
    return []
