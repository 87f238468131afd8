"""What lies in a folder that a report is to be made of, and what each file is."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from .coverage_metadata import COVERAGE_JSON
from .report_blocks import shown
from .search_result import SEARCH_JSON
from .training_facts import TRAINING_JSON

DECODE_JSON = "decode_report.json"
RUN_JSON = "run.json"
SUMMARY_JSON = "report.json"
RECIPE = "recipe.yaml"
VERSIONS_JSON = "versions.json"
FIGURES_JSON = "figures.json"

_OUR_FOLDERS = frozenset({"domains", "search", "draft", "measure", "publish", "vtrim"})
_DEEPEST = 8
_MOST_FILES = 5_000
_MOST_BYTES = 256 << 20
_PICTURES = frozenset({".png", ".svg", ".jpg", ".jpeg"})
_DRAWN = {"search.png": SEARCH_JSON, "decode_report.png": DECODE_JSON}
_RUN_FILES = frozenset({RUN_JSON, SUMMARY_JSON, RECIPE, VERSIONS_JSON, "report.md"})


class Kind(StrEnum):
    """What a file tells of."""

    run = "a recipe's run"
    search = "a search result"
    training = "a training"
    measurement = "a measurement"
    coverage = "a draft's facts"
    figures = "figures of a benchmark"
    words = "a text beside figures"
    picture = "a picture beside figures"
    drawn = "a picture whose figures are here"
    other = "nothing that a page shows"


@dataclass(frozen=True)
class Found:
    """One file.

    Attributes:
        path: where it lies.
        name: the same relative to the folder, with slashes.
        kind: what it tells of.
        why: why it is not shown, if it is not.
    """

    path: Path
    name: str
    kind: Kind
    why: str = ""

    @property
    def scope(self) -> str:
        """Its folder relative to the one that was looked through; empty for that itself."""
        return self.name.rpartition("/")[0]

    def title(self, what: str) -> str:
        """Return a heading that says which draft or folder this is about, where that is known."""
        parts = [part for part in self.scope.split("/") if part not in _OUR_FOLDERS]
        about = shown("/".join(parts), 120)
        return f"{what}: {about}" if about else what


def look_through(folder: Path, ignored: Iterable[Path] = ()) -> tuple[Found, ...]:
    """Return the files in and below a folder, in the order of their names.

    Hidden files are left out, but a training's workplace is looked into. A link that leads out of
    the folder is not followed: a page may go to people who must not see what lies there.

    Args:
        folder: where to look.
        ignored: files that are not looked at, such as the page itself.

    Raises:
        FileNotFoundError: if there is no such folder.
        ValueError: if it is a file, holds nothing, or far more files than any run.
    """
    if not folder.exists():
        raise FileNotFoundError(
            f"there is no folder {folder}: name one that `vtrim run`, `search -o`, `train -o` or "
            "`measure -o` wrote"
        )
    if not folder.is_dir():
        raise ValueError(f"{folder} is a file: name the folder that it lies in")
    inside = folder.resolve()
    without = {path.resolve() for path in ignored}
    by_folder: dict[Path, list[str]] = defaultdict(list)
    for count, path in enumerate(_files(folder)):
        if count >= _MOST_FILES:
            raise ValueError(
                f"{folder} holds more than {_MOST_FILES:,} files: name the folder of one run in it"
            )
        if path.resolve() not in without:
            by_folder[path.parent].append(path.name)
    is_run = RUN_JSON in by_folder[folder]
    found = [
        _found(place / name, folder, inside, names, is_run=is_run and place == folder)
        for place, names in by_folder.items()
        for name in names
    ]
    return tuple(sorted(found, key=lambda one: one.name))


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        ValueError: if it is none, or nested without end.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"this is no JSON: {error}") from error


def _files(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        depth = len(Path(place).relative_to(folder).parts)
        folders[:] = sorted(
            name
            for name in folders
            if depth < _DEEPEST and (not name.startswith(".") or name.endswith(".training"))
        )
        yield from (Path(place) / name for name in sorted(names) if not name.startswith("."))


def _found(path: Path, folder: Path, inside: Path, beside: list[str], *, is_run: bool) -> Found:
    name = path.relative_to(folder).as_posix()
    if not path.resolve().is_relative_to(inside):
        return Found(path, name, Kind.other, "it is a link to a place outside of the folder")
    if not path.is_file():
        return Found(path, name, Kind.other, "it is no file, or a link to nothing")
    kind = _kind(name, path, beside, is_run)
    if kind is Kind.other:
        return Found(path, name, kind, "no part of a report")
    if path.stat().st_size > _MOST_BYTES:
        return Found(path, name, Kind.other, f"it is larger than {_MOST_BYTES >> 20} MiB")
    return Found(path, name, kind)


def _kind(name: str, path: Path, beside: list[str], is_run: bool) -> Kind:
    known = {
        SEARCH_JSON: Kind.search,
        DECODE_JSON: Kind.measurement,
        TRAINING_JSON: Kind.training,
        FIGURES_JSON: Kind.figures,
    }
    if path.name in known:
        return known[path.name]
    if f"/{name}".endswith(f"/{COVERAGE_JSON}"):
        return Kind.coverage
    if is_run and path.name in _RUN_FILES:
        return Kind.run
    if path.name in _DRAWN and _DRAWN[path.name] in beside:
        return Kind.drawn
    # Any other JSON may hold anything, a login even: only what lies beside figures is shown.
    if not is_run and {FIGURES_JSON, "report.md"} & set(beside) and "config.json" not in beside:
        if path.suffix == ".json":
            return Kind.figures
        if path.suffix == ".md":
            return Kind.words
        if path.suffix.lower() in _PICTURES:
            return Kind.picture
    return Kind.other
