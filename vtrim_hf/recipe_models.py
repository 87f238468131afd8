"""The models of a recipe: the target by its name, and the draft that is cut or trained for it."""

from __future__ import annotations

import re
from pathlib import Path

from .embedded_models import EMBEDDED
from .recipe import DTYPES, DraftChoice, EagleChoice, ModelChoice
from .recipe_fields import MOST_WHOLE, Section
from .recipe_settings import LONGEST_DRAFT

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)
_BODIES = ("standalone", "eagle3")
_STATES = 3  # of the target, that an EAGLE-3 body reads


def read_model(section: Section, key: str, folder: Path) -> ModelChoice | None:
    """Read a model: its name, or a mapping of name and revision."""
    found = section.located(key)
    own, name_key = section, key
    if found is not None and isinstance(found.value, dict):
        own, name_key = section.section(key), "model"
    revision = own.text("revision", None) if own is not section else None
    name = own.text(name_key)
    if own is not section:
        own.finish()
    return None if name is None else _named(own, name_key, name, revision, folder)


def read_draft(section: Section, folder: Path) -> DraftChoice | EagleChoice | None:
    """Read the draft: a model that is cut, or a body that is trained."""
    if not section.given:
        return None
    body = section.choice("body", _BODIES, None)
    # What a misspelt body was to be shows by its company.
    trained = body == "eagle3" or (
        body is None and section.has("body") and not section.has("model")
    )
    dtype = section.choice("dtype", DTYPES, "bfloat16")
    length = section.whole("draft_length", None, most=LONGEST_DRAFT)
    if trained:
        for key in ("model", "revision"):
            if section.has(key):
                section.wrong(
                    f"draft.{key} names a model to cut, but a draft of body eagle3 is made for "
                    f"its target and trained: leave {key} out, or body, to cut that model",
                    section.line_of(key),
                )
        width = section.whole("mlp_width", None)
        eagle = EagleChoice(_states(section), dtype, length, width)
        section.finish()
        return eagle
    revision = section.text("revision", None)
    name = section.text("model")
    layers = _first_layers(section)
    section.finish()
    if name is None:
        return None
    return DraftChoice(_named(section, "model", name, revision, folder), layers, dtype, length)


def place_of(folder: Path, name: str) -> Path | None:
    """Return the absolute path that a name stands for beside the recipe; None if none is there."""
    try:
        place = folder / Path(name).expanduser()
        return place.resolve() if place.exists() else None
    except (OSError, RuntimeError, ValueError):  # too long for a path, or ~somebody unknown
        return None


def _states(section: Section) -> tuple[int, ...] | None:
    """Read which of the target's hidden states an EAGLE-3 body reads."""
    found = section.located("layers")
    if found is None or found.value is None:
        return None
    items = found.value if isinstance(found.value, list) else [found]
    given = [item.value for item in items]
    ids = tuple(value for value in given if type(value) is int and 0 <= value <= MOST_WHOLE)
    if len(ids) != len(given) or len(ids) != _STATES or ids != tuple(sorted(set(ids))):
        got = given if isinstance(found.value, list) else f"{found.value!r:.60}"
        section.wrong(
            f"draft.layers of a draft of body eagle3 must be {_STATES} ascending whole numbers, "
            f"the hidden states of the target that it reads, got {got!s:.60}: write them as "
            "[2, 15, 27], or leave layers out",
            found.line,
        )
        return None
    return ids


def _first_layers(section: Section) -> int | None:
    """Read how many of the first layers a draft that is cut keeps."""
    found = section.located("layers")
    if found is not None and isinstance(found.value, list):
        section.wrong(
            "draft.layers of a draft that is cut must be a whole number, how many of its first "
            "layers are kept, got a list: three hidden states are what a draft of body: eagle3 "
            "reads, which is trained and names no model",
            found.line,
        )
        return None
    layers: int | None = section.whole("layers", None)
    return layers


def _named(
    section: Section, key: str, name: str, revision: str | None, folder: Path
) -> ModelChoice:
    place = None if name in EMBEDDED else place_of(folder, name)
    is_hub_id = name not in EMBEDDED and place is None
    if place is not None and place.is_file():
        section.wrong(f"{section.place(key)} names a file: {place}", section.line_of(key))
    elif is_hub_id and not HUB_ID.fullmatch(name):
        section.wrong(
            f"{section.place(key)}: there is no folder {name!r:.200} beside the recipe, and it is "
            f"neither a Hub id nor one of {', '.join(EMBEDDED)}",
            section.line_of(key),
        )
    if revision is not None and not is_hub_id:
        section.wrong(
            f"{section.place('revision')} is for a Hub id, and {name!r} is none: leave it out",
            section.line_of("revision"),
        )
    return ModelChoice(name if place is None else str(place), revision)
