"""A folder of drafts of one target, one a domain: what lies in it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .coverage_metadata import COVERAGE_JSON, parse
from .hub_arguments import check_place

_CONFIG = "config.json"
_REPORT = "measure/decode_report.json"


@dataclass(frozen=True)
class FamilyDraft:
    """A draft of a family.

    Attributes:
        domain: its domain.
        folder: where it was saved.
        report: `decode_report.json` of its measurement, if there is one.
    """

    domain: str
    folder: Path
    report: Path | None = None


def drafts_in(drafts: str | Path | Mapping[str, str | Path]) -> dict[str, FamilyDraft]:
    """Find the drafts of a family.

    Args:
        drafts: a folder with one draft folder a domain, a folder that `vtrim run` wrote with
            `drafts: per_domain`, or the drafts' folders by domain.

    Returns:
        Drafts by domain, ascending.

    Raises:
        TypeError: if it is neither a path nor paths by domain.
        ValueError: if there are none, or they are drafts of several targets.
    """
    way = "give the folder of a run, a folder of drafts, or the drafts' folders by domain"
    if isinstance(drafts, Mapping):
        for name, place in drafts.items():
            if not (isinstance(name, str) and name.strip()):
                raise TypeError(f"a domain's name must be a text, got {name!r:.80}: {way}")
            check_place(f"the draft of {name!r:.80}", place, way)
        places = {name: Path(place) for name, place in drafts.items()}
    else:
        check_place("drafts", drafts, way)
        places = _places(Path(drafts))
    found = {}
    for name in sorted(places):
        folder = places[name]
        if not (folder / _CONFIG).is_file():
            raise ValueError(
                f"the draft of {name!r} must be a folder that it was saved in, {folder} holds no "
                f"{_CONFIG}: save it with draft.save_pretrained or `vtrim trim`"
            )
        report = folder.parent / _REPORT
        own = folder.name == "draft" and report.is_file()
        found[name] = FamilyDraft(name, folder, report if own else None)
    if not found:
        raise ValueError(
            f"a family is published from a folder with one draft folder a domain, {drafts} holds "
            "none: make one with a recipe that says `drafts: per_domain`, or `vtrim trim`"
        )
    _check_one_target(found)
    return found


def _places(folder: Path) -> dict[str, Path]:
    if not folder.is_dir():
        raise ValueError(f"a family is published from a folder, {folder} is none")
    if (folder / _CONFIG).is_file():
        raise ValueError(
            f"{folder} holds one draft, a family is a folder with one draft folder a domain: "
            "publish it by itself, or name the folder above it"
        )
    # A run keeps each domain's draft beside its search and its measurement.
    base = folder / "domains" if (folder / "domains").is_dir() else folder
    found = {}
    for place in base.iterdir():
        for candidate in (place, place / "draft"):
            if (candidate / _CONFIG).is_file() and not place.name.startswith("."):
                found[place.name] = candidate
                break
    return found


def _check_one_target(drafts: Mapping[str, FamilyDraft]) -> None:
    targets: dict[tuple[Any, ...], str] = {}
    ids: dict[str, str] = {}
    for name, draft in drafts.items():
        try:
            config = json.loads((draft.folder / _CONFIG).read_text(encoding="utf-8"))
            if not isinstance(config, dict):
                raise ValueError("it is no object")
        except ValueError as error:
            raise ValueError(f"{draft.folder / _CONFIG} is no JSON: {error}") from error
        if config.get("model_type") != "trimmed_draft":
            raise ValueError(
                f"{draft.folder} holds a {config.get('model_type')!r} model, no trimmed draft: "
                "take it out of the folder"
            )
        targets.setdefault((config.get("vocab_size"), config.get("tokenizer_hash")), name)
        told_id = _target_id(draft.folder, config)
        if told_id is not None:
            ids.setdefault(told_id, name)
    if len(ids) > 1:
        told = "; ".join(f"{name!r} is for {target}" for target, name in ids.items())
        raise ValueError(f"a family is of one target, these drafts are of several: {told}")
    if len(targets) > 1:
        told = "; ".join(
            f"{name!r} has {width} tokens of the tokenizer {str(hash_)[:12]}"
            for (width, hash_), name in targets.items()
        )
        raise ValueError(f"a family is of one target, these drafts are of several: {told}")


def _target_id(folder: Path, config: Mapping[str, Any]) -> str | None:
    """Return the Hub id of the target that a draft names, if it names one."""
    facts = folder / COVERAGE_JSON
    if facts.is_file():
        told: str | None = parse(facts.read_bytes())["target"].get("id")
        if told is not None:
            return told
    name = config.get("target_name")
    return name if isinstance(name, str) else None
