"""A folder of drafts of one target, one a domain: what lies in it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
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
        target: Hub id of its target, if it names one.
        vocab_size: V, the target's padded width, if it is told.
    """

    domain: str
    folder: Path
    report: Path | None = None
    target: str | None = None
    vocab_size: int | None = None


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
    return _of_one_target(found)


def _places(folder: Path) -> dict[str, Path]:
    if not folder.is_dir():
        raise ValueError(f"a family is published from a folder, {folder} is none")
    if (folder / _CONFIG).is_file():
        raise ValueError(
            f"{folder} holds one draft, a family is a folder with one draft folder a domain: "
            "publish it by itself, or name the folder above it"
        )
    if (folder / "draft" / _CONFIG).is_file():  # of one domain, or of a run for all together
        raise ValueError(
            f"{folder} holds one draft, a family is a folder with one draft folder a domain: "
            f"publish {folder / 'draft'} by itself, or name the folder of a run with `drafts: "
            "per_domain`"
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


def _of_one_target(drafts: Mapping[str, FamilyDraft]) -> dict[str, FamilyDraft]:
    """Return the drafts with the target that each names, refused if there are several."""
    read = {}
    targets: dict[tuple[Any, ...], str] = {}
    ids: dict[str, str] = {}
    for name, draft in drafts.items():
        config = _config(draft)
        if config.get("model_type") != "trimmed_draft":
            raise ValueError(
                f"{draft.folder} holds a {config.get('model_type')!r} model, no trimmed draft: "
                "take it out of the folder"
            )
        width = config.get("vocab_size")
        if type(width) is not int:
            raise ValueError(
                f"{draft.folder / _CONFIG}: vocab_size must be a whole number, got {width!r:.80}: "
                f"save the draft of {name!r} again"
            )
        targets.setdefault((width, str(config.get("tokenizer_hash"))), name)
        told_id = _target_id(draft, config)
        if told_id is not None:
            ids.setdefault(told_id, name)
        read[name] = replace(draft, target=told_id, vocab_size=width)
    if len(ids) > 1:
        told = "; ".join(f"{name!r} is for {target}" for target, name in ids.items())
        raise ValueError(f"a family is of one target, these drafts are of several: {told}")
    if len(targets) > 1:
        told = "; ".join(
            f"{name!r} has {width} tokens of the tokenizer {hash_[:12]}"
            for (width, hash_), name in targets.items()
        )
        raise ValueError(f"a family is of one target, these drafts are of several: {told}")
    return read


def _config(draft: FamilyDraft) -> dict[str, Any]:
    place = draft.folder / _CONFIG
    try:
        config = json.loads(place.read_text(encoding="utf-8"))
        if not isinstance(config, dict):
            raise ValueError("it is no object")
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{place} of the domain {draft.domain!r} is no JSON: {error}; save the draft again"
        ) from error
    return config


def _target_id(draft: FamilyDraft, config: Mapping[str, Any]) -> str | None:
    """Return the Hub id of the target that a draft names, if it names one."""
    facts = draft.folder / COVERAGE_JSON
    if facts.is_file():
        try:
            told: str | None = parse(facts.read_bytes())["target"].get("id")
        except ValueError as error:
            raise ValueError(
                f"{facts} of the domain {draft.domain!r}: {error}; save the draft again, or "
                "remove the file"
            ) from error
        if told is not None:
            return told
    name = config.get("target_name")
    return name if isinstance(name, str) else None
